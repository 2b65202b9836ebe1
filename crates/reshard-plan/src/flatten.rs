//! DCP's flat state dicts.
