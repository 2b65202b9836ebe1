//! What is said of a tensor whose stored shape is not the one that was asked for.

use crate::{Fault, TensorRef};
use reshard_model::{Dims, ShardedTensor};

/// Both shapes, how both sides are cut, and the axes that differ.
pub(crate) fn shapes_differ(stored: TensorRef<'_>, t: &ShardedTensor) -> Fault {
    let shape = stored.global_shape();
    let mut other = format!("{} was asked for", t.global_shape);
    if let Some(f) = &t.axis_fragmentations {
        other += &format!(" in {f} fragments");
    }
    if t.flattened_range.is_some() {
        other += ", flattened";
    }
    let axes: Vec<String> = (0..shape.len().min(t.global_shape.len()))
        .filter(|a| shape[*a] != t.global_shape[*a])
        .map(|a| a.to_string())
        .collect();
    if shape.len() != t.global_shape.len() {
        other += "; the number of axes differs";
    } else {
        let (s, verb) = if axes.len() == 1 {
            ("is", "differs")
        } else {
            ("es", "differ")
        };
        other += &format!("; ax{s} {} {verb}", axes.join(", "));
    }
    Fault::Shape {
        is: format!("{shape} in the checkpoint, {}", cut(stored)),
        other,
    }
}

/// How a stored tensor is cut, in words.
fn cut(stored: TensorRef<'_>) -> String {
    let shape = stored.shape();
    // The stored shape of a flattened one has the number of its cells per axis.
    if stored.original_shape().is_some()
        && let Some((_, cells)) = shape.split_last()
    {
        return format!("in {} fragments, flattened", Dims::from(cells));
    }
    match (grid(stored), stored.chunk_count()) {
        (Some(fragments), _) => format!("in {fragments} fragments"),
        (None, 1) => "in 1 chunk".into(),
        (None, n) => format!("in {n} chunks that make up no grid"),
    }
}

/// The number of chunks per axis, if they are a regular grid. Those at the end of an axis may be shorter.
fn grid(stored: TensorRef<'_>) -> Option<Dims> {
    let shape = stored.shape();
    let mut chunks = stored.chunks().map(|(_, region)| region);
    let cell = chunks.find(|c| c.offsets.iter().all(|o| *o == 0))?.lengths;
    let per_axis = |(n, cell): (&u64, &u64)| match (*n, *cell) {
        (0, 0) => Some(1),
        (_, 0) => None,
        (n, cell) => Some(n.div_ceil(cell)),
    };
    let fragments: Option<Dims> = shape.iter().zip(&cell).map(per_axis).collect();
    let fragments = fragments.filter(|f| f.volume() == Some(stored.chunk_count() as u64))?;
    let on_grid = stored.chunks().all(|(_, chunk)| {
        (0..shape.len()).all(|a| {
            let (from, n) = (chunk.offsets[a], chunk.lengths[a]);
            let rest = shape[a].saturating_sub(from);
            from.checked_rem(cell[a]).unwrap_or(from) == 0 && n == cell[a].min(rest)
        })
    });
    on_grid.then_some(fragments)
}
