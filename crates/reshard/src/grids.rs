//! Arrays of objects that lack cells.

use reshard_megatron::incomplete_arrays;
use reshard_model::ErrorKind;
use reshard_plan::Metadata;
use reshard_strategy::VerifyReport;

/// Reports each array of objects of which cells are missing.
pub(crate) fn check(metadata: &Metadata, report: &mut VerifyReport) {
    for found in incomplete_arrays(metadata.objects().map(|(_, key)| key)) {
        report.add(ErrorKind::Corrupt, found);
    }
}
