//! laws of whole saves and loads: round trip, resharding, order, faults
