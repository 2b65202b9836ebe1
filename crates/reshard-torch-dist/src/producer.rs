//! Which programs wrote a checkpoint, and which can load it, as far as its bytes tell.

use crate::{
    Flavour,
    names::hint,
    table::{Item, Signs, Table},
};
use reshard_model::{DType, Dialect};
use reshard_strategy::{Producer, few, first};
use std::collections::{BTreeMap, BTreeSet};

/// The flavour of a `.metadata`, by the differences between PyTorch's versions.
pub(crate) fn flavour(s: &Signs) -> Flavour {
    match (s.arity, s.storage_meta || s.version.is_some()) {
        (6.., _) => Flavour::Torch215,
        (_, true) => Flavour::Torch24,
        _ if s.old_module || !s.has_tensors => Flavour::Universal,
        _ => Flavour::Torch23,
    }
}

/// The minor version of the first PyTorch 2 that saves and loads tensors of an element type. The type itself may be older.
fn since(dtype: DType) -> u8 {
    match dtype {
        DType::Float8E4M3Fn | DType::Float8E5M2 => 2,
        DType::Complex32 | DType::Float8E4M3FnUz | DType::Float8E5M2FnUz => 3,
        DType::UInt16 | DType::UInt32 | DType::UInt64 | DType::Float8E8M0Fnu => 7,
        DType::Float4E2M1FnX2 => 14,
        DType::BComplex32 => 15,
        _ => 1,
    }
}

/// The first PyTorch that saves and loads without collectives.
const RANK_LOCAL: u8 = 9;

/// The first PyTorch that loads the checkpoint: it must know the flavour, the layout, and every element type.
struct Needs {
    minor: u8,
    /// The element types that need this version, if it is needed because of element types.
    dtypes: BTreeSet<DType>,
}

impl Needs {
    fn of(table: &Table, flavour: Flavour, rank_local: bool) -> Self {
        let format = match flavour {
            Flavour::Universal => 1,
            Flavour::Torch23 => 3,
            Flavour::Torch24 => 4,
            Flavour::Torch215 => 15,
        };
        let format = format.max(if rank_local { RANK_LOCAL } else { 0 });
        let all: BTreeSet<DType> = table.metadata.tensors().map(|t| t.dtype()).collect();
        let minor = all.iter().copied().map(since).fold(format, u8::max);
        let dtypes = all.into_iter();
        let dtypes = dtypes.filter(|d| since(*d) == minor && minor > format);
        Self {
            minor,
            dtypes: dtypes.collect(),
        }
    }

    /// `PyTorch 2.7 or later, for its uint16, uint32`.
    fn text(&self) -> String {
        let names: Vec<&str> = self.dtypes.iter().map(|d| d.name()).collect();
        let why = match names.is_empty() {
            true => String::new(),
            false => format!(", for its {}", names.join(", ")),
        };
        format!("PyTorch 2.{} or later{why}", self.minor)
    }
}

/// The versions that write a flavour: the first and the last minor version of PyTorch 2, as text.
fn writers(s: &Signs, flavour: Flavour) -> (u8, &'static str) {
    match flavour {
        Flavour::Universal if !s.has_tensors && !s.storage_meta => {
            (3, "PyTorch 2.1 to 2.3, or reshard")
        }
        Flavour::Universal => (2, "PyTorch 2.1 or 2.2, or reshard for all versions"),
        Flavour::Torch23 => (3, "PyTorch 2.3"),
        Flavour::Torch24 if s.version.is_some() => (14, "PyTorch 2.9 to 2.14"),
        Flavour::Torch24 => (8, "PyTorch 2.4 to 2.8"),
        Flavour::Torch215 => (u8::MAX, "PyTorch 2.15"),
    }
}

/// `storage_meta` of PyTorch, and the separation hints of Megatron Core in the names of files.
fn save(table: &Table) -> BTreeMap<String, String> {
    let meta = &table.signs.meta;
    let modules = meta.modules.iter().map(String::as_str);
    let names = table.files.iter().flatten().map(|name| name.as_str());
    let hints: BTreeSet<&str> = names.filter_map(hint).filter(|h| !h.is_empty()).collect();
    let facts = [
        ("checkpoint_id", meta.checkpoint_id.clone()),
        ("save_id", meta.save_id.clone()),
        ("load_id", meta.load_id.clone()),
        ("modules", Some(few(modules))),
        ("separation_hint", Some(few(hints.into_iter()))),
    ];
    let stated = facts.into_iter().filter_map(|(name, text)| {
        let text = text.filter(|text| !text.is_empty())?;
        Some((name.into(), text))
    });
    stated.collect()
}

/// Where Megatron Core 0.19 and later keep common state.
pub(crate) const COMMON_STATE: &str = "common_state/shard_0_1";

/// Of a rank-local checkpoint: that it is one, and that copies of other ranks are not read.
fn tell_ranks(out: &mut Producer, table: &Table, rank_local: Option<u32>) {
    if let Some(n) = rank_local {
        out.notes.push(format!(
            "rank-local: each of {n} ranks has metadata of its own"
        ));
    }
    let several: BTreeSet<Item> = table.copies.iter().map(|(item, _)| *item).collect();
    let keys = several.iter().filter_map(|item| table.key(*item));
    out.copies = keys.map(ToOwned::to_owned).collect();
    if !several.is_empty() {
        out.warnings.push(format!(
            "several ranks have {} of the items; reads take that of the lowest rank, and don't compare it with the others",
            several.len()
        ));
    }
}

pub(crate) fn producer(table: &Table, dialect: Dialect, rank_local: Option<u32>) -> Producer {
    let s = &table.signs;
    let flavour = flavour(s);
    let needs = Needs::of(table, flavour, rank_local.is_some());
    let torch = match writers(s, flavour) {
        // A PyTorch of that flavour can't have saved this.
        (last, _) if last < needs.minor => "reshard",
        (_, names) => names,
    };
    let mut out = Producer {
        written_by: vec![torch.into()],
        save: save(table),
        ..Producer::default()
    };

    out.loadable_by.push(match rank_local {
        Some(n) => format!("{}, on {n} ranks with the same layout", needs.text()),
        None => needs.text(),
    });
    tell_ranks(&mut out, table, rank_local);

    // Versions of Megatron Core differ in what they leave in the metadata. The surest signs come first.
    if dialect == Dialect::Megatron {
        let modern = table.metadata.object(COMMON_STATE).is_some();
        let flattened = table.metadata.tensors();
        let flattened = flattened.filter(|t| t.original_shape().is_some()).count();
        let flat = flattened > 0;
        let mcore = match () {
            () if modern => "Megatron Core 0.19 or later",
            () if s.mcore_class => "Megatron Core 0.15",
            () if s.mcore_data && s.all_local_plans => "Megatron Core 0.11 to 0.15",
            () if s.mcore_data && s.planner_data => "Megatron Core 0.8 to 0.10",
            () if s.mcore_data => "reshard",
            () if s.all_local_plans => "Megatron Core 0.16 to 0.18",
            () if s.planner_data => "Megatron Core 0.6 or 0.7",
            () => "Megatron Core, or reshard",
        };
        out.written_by.push(mcore.into());
        out.loadable_by.push(match () {
            () if modern => "Megatron Core 0.19 or later".to_string(),
            () if flat => "Megatron Core 0.8 to 0.15 (flattened tensors)".into(),
            () => "Megatron Core 0.12 or later".into(),
        });

        if let (false, Some(reads)) = (needs.dtypes.is_empty(), out.loadable_by.last_mut()) {
            reads.push_str(" with such a PyTorch");
        }

        if flat {
            out.notes.push(format!(
                "{flattened} tensor{} stored flattened, cell by cell",
                if flattened == 1 { " is" } else { "s are" }
            ));
        }
    }

    out.unknown.clone_from(&table.unknown);
    if !table.unknown.is_empty() {
        out.loadable_by
            .iter_mut()
            .for_each(|l| l.push_str("; what is not understood may need a later version"));
    }

    // The notes are for people, so they name only the first ones.
    let most = 20;
    let unknown = table.unknown.iter().take(most);
    let unknown = unknown.map(|(key, what)| format!("{key} can't be read: {what}"));
    out.notes.extend(unknown);
    if let Some(more) = table.unknown.len().checked_sub(most).filter(|n| *n > 0) {
        out.notes.push(format!("{more} more can't be read"));
    }
    if table.transforms.len() > 1 {
        let names = table.transforms.iter().flatten().map(String::as_str);
        let names: BTreeSet<&str> = names.collect();
        out.notes.push(format!(
            "items went through stream transforms: {}",
            first(most, names.into_iter())
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{self, StorageMeta};
    use reshard_model::Region;
    use reshard_plan::Metadata;

    /// What is said of a checkpoint of these element types.
    fn of(
        dtypes: &[DType],
        flavour: Flavour,
        dialect: Dialect,
        rank_local: Option<u32>,
    ) -> Producer {
        let mut b = Metadata::builder();
        for (i, d) in dtypes.iter().enumerate() {
            let id = b
                .add_tensor(&i.to_string(), *d, &[0], Default::default())
                .unwrap();
            b.add_chunk(id, &Region::new([0], [0])).unwrap();
        }
        let meta = StorageMeta::of_save("here");
        let pickle = metadata::write(&b.finish(None).unwrap(), &[], flavour, &meta, false).unwrap();
        producer(
            &Table::parse("m", pickle.into(), &Default::default()).unwrap(),
            dialect,
            rank_local,
        )
    }

    fn readers(dtypes: &[DType], flavour: Flavour, rank_local: Option<u32>) -> String {
        of(dtypes, flavour, Dialect::Dcp, rank_local)
            .loadable_by
            .join("; ")
    }

    #[test]
    fn an_element_type_needs_a_pytorch_that_has_it() {
        use DType::*;
        for d in DType::ALL {
            let want = match d {
                Bool | UInt8 | Int8 | Int16 | Int32 | Int64 | Float16 | BFloat16 | Float32
                | Float64 | Complex64 | Complex128 => "PyTorch 2.1 or later".into(),
                Float8E4M3Fn | Float8E5M2 => format!("PyTorch 2.2 or later, for its {d}"),
                Complex32 | Float8E4M3FnUz | Float8E5M2FnUz => {
                    format!("PyTorch 2.3 or later, for its {d}")
                }
                UInt16 | UInt32 | UInt64 | Float8E8M0Fnu => {
                    format!("PyTorch 2.7 or later, for its {d}")
                }
                Float4E2M1FnX2 => format!("PyTorch 2.14 or later, for its {d}"),
                BComplex32 => format!("PyTorch 2.15 or later, for its {d}"),
                _ => "a new element type: since when has PyTorch had it?".into(),
            };
            assert_eq!(readers(&[Float32, *d], Flavour::Universal, None), want);
        }
    }

    #[test]
    fn the_youngest_of_flavour_layout_and_element_types_decides() {
        use DType::{BComplex32, Complex32, Float32, UInt16, UInt32};
        assert_eq!(
            readers(&[UInt16, Complex32, UInt32], Flavour::Torch23, None),
            "PyTorch 2.7 or later, for its uint16, uint32"
        );
        assert_eq!(
            readers(&[Complex32], Flavour::Torch24, None),
            "PyTorch 2.4 or later"
        );
        assert_eq!(
            readers(&[BComplex32], Flavour::Torch215, None),
            "PyTorch 2.15 or later"
        );
        let local = |dtypes, flavour| readers(dtypes, flavour, Some(2));
        let layout = ", on 2 ranks with the same layout";
        assert_eq!(
            local(&[UInt16], Flavour::Universal),
            format!("PyTorch 2.9 or later{layout}")
        );
        assert_eq!(
            local(&[Float32], Flavour::Torch215),
            format!("PyTorch 2.15 or later{layout}")
        );
        let new = format!("PyTorch 2.15 or later, for its bcomplex32{layout}");
        assert_eq!(local(&[BComplex32], Flavour::Universal), new);
    }

    #[test]
    fn megatron_core_needs_that_pytorch_too() {
        let said = of(
            &[DType::UInt16],
            Flavour::Universal,
            Dialect::Megatron,
            None,
        )
        .loadable_by;
        assert_eq!(
            said,
            [
                "PyTorch 2.7 or later, for its uint16",
                "Megatron Core 0.12 or later with such a PyTorch"
            ]
        );
        let said = of(&[DType::Int8], Flavour::Universal, Dialect::Megatron, None).loadable_by;
        assert_eq!(
            said,
            ["PyTorch 2.1 or later", "Megatron Core 0.12 or later"]
        );
    }

    #[test]
    fn a_pytorch_without_the_element_type_did_not_write_it() {
        let by = |dtypes, flavour| of(dtypes, flavour, Dialect::Dcp, None).written_by;
        assert_eq!(by(&[DType::UInt16], Flavour::Universal), ["reshard"]);
        assert_eq!(by(&[DType::UInt16], Flavour::Torch23), ["reshard"]);
        assert_eq!(
            by(&[DType::UInt16], Flavour::Torch24),
            ["PyTorch 2.9 to 2.14"]
        );
        assert_eq!(
            by(&[DType::BComplex32], Flavour::Torch215),
            ["PyTorch 2.15"]
        );
        assert_eq!(
            by(&[DType::Float8E5M2], Flavour::Universal),
            ["PyTorch 2.1 or 2.2, or reshard for all versions"]
        );
        assert_eq!(
            of(&[], Flavour::Universal, Dialect::Dcp, Some(2)).written_by,
            ["reshard"]
        );
    }
}
