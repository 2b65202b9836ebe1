//! How regions see the memory of a tensor.

use crate::{FlatView, Layout, ModelError, Region, Result, Segments, first_overlap};
use std::borrow::Cow;

/// Where the elements of a tensor lie in memory. Regions are boxes of the tensor; or, if the memory has a range of a tensor, boxes of that
/// tensor, in the range.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) layout: Layout,
    flat: Option<FlatView>,
}

impl View {
    /// A whole tensor with this layout.
    pub fn new(layout: Layout) -> Self {
        Self { layout, flat: None }
    }

    /// A range of a tensor.
    #[must_use]
    pub fn flat(self, tensor: FlatView) -> Self {
        Self {
            flat: Some(tensor),
            ..self
        }
    }

    /// Where the elements of a region lie. `None` if the region does not lie in the view.
    pub fn narrow(&self, region: &Region) -> Option<Layout> {
        match &self.flat {
            Some(flat) => flat.narrow(&self.layout, region),
            None => region
                .fits(self.layout.shape())
                .then(|| self.layout.narrow(region)),
        }
    }

    fn describe(&self) -> Cow<'static, str> {
        match &self.flat {
            None => format!("a view of shape {}", self.layout.shape()).into(),
            Some(FlatView { shape, start }) => {
                let end = start.saturating_add(self.layout.elements());
                format!("the elements {start}..{end} of shape {shape}").into()
            }
        }
    }
}

/// Fails if two regions of views of one memory share a byte, or one does not lie in its view.
///
/// # Errors
/// [`ModelError::Overlap`], [`ModelError::Invalid`].
pub fn check_disjoint(key: &str, wants: &[(&View, &Region)]) -> Result<()> {
    narrowed(key, wants).map(drop)
}

/// Where the elements of disjoint regions lie.
pub(super) fn narrowed(key: &str, wants: &[(&View, &Region)]) -> Result<Vec<Layout>> {
    let mut layouts = Vec::with_capacity(wants.len());
    for (view, region) in wants {
        let Some(layout) = view.narrow(region) else {
            let what = format!("region {region} does not lie in {}", view.describe());
            return Err(ModelError::invalid(key, what));
        };
        layouts.push(layout);
    }
    match overlap(wants, &layouts) {
        None => Ok(layouts),
        Some((i, j)) => Err(ModelError::Overlap {
            a: Box::new(wants[i].1.clone()),
            b: Box::new(wants[j].1.clone()),
        }),
    }
}

fn overlap(wants: &[(&View, &Region)], layouts: &[Layout]) -> Option<(usize, usize)> {
    // Regions of one view: views are injective, so disjoint boxes are disjoint memory.
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&i| std::ptr::from_ref(wants[i].0).addr());
    let groups: Vec<&[usize]> = order
        .chunk_by(|&i, &j| std::ptr::eq(wants[i].0, wants[j].0))
        .collect();
    for g in &groups {
        let ndim = wants[g[0]].1.ndim();
        let range = |i: usize, a: usize| wants[g[i]].1.offsets[a]..wants[g[i]].1.end(a);
        if let Some((i, j)) = first_overlap(g.len(), ndim, range) {
            return Some((g[i], g[j]));
        }
    }
    if groups.len() < 2 {
        return None;
    }
    // Regions of different views: apart when the bytes that they span are; else their runs are compared one by one.
    let hulls: Vec<_> = layouts.iter().map(Layout::hull).collect();
    first_overlap(hulls.len(), 1, |i, _| hulls[i].clone())?;
    let mut runs: Vec<(u64, u64, usize)> = Vec::new();
    for (i, l) in layouts.iter().enumerate() {
        runs.extend(Segments::source_order(l, l).map(|(s, _, n)| (s, s + n, i)));
    }
    runs.sort_unstable();
    let found = runs.windows(2).find(|w| w[0].1 > w[1].0);
    found.map(|w| (w[0].2, w[1].2))
}
