//! Pickles put together by hand.

pub(crate) const MD: &str = "torch.distributed.checkpoint.metadata";
pub(crate) const FS: &str = "torch.distributed.checkpoint.filesystem";

/// Instructions put together by hand.
#[derive(Clone, Default)]
pub(crate) struct Asm(pub(crate) Vec<u8>);

impl Asm {
    pub(crate) fn new() -> Self {
        Self(b"\x80\x04".to_vec())
    }
    pub(crate) fn op(mut self, raw: &[u8]) -> Self {
        self.0.extend_from_slice(raw);
        self
    }
    pub(crate) fn str(self, text: &str) -> Self {
        self.op(b"X")
            .op(&(text.len() as u32).to_le_bytes())
            .op(text.as_bytes())
    }
    pub(crate) fn int(self, n: u32) -> Self {
        self.op(b"J").op(&n.to_le_bytes())
    }
    pub(crate) fn class(self, module: &str, name: &str) -> Self {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }
    pub(crate) fn put(self, n: u32) -> Self {
        self.op(b"r").op(&n.to_le_bytes())
    }
    pub(crate) fn get(self, n: u32) -> Self {
        self.op(b"j").op(&n.to_le_bytes())
    }
    /// Remembers what was made last and takes it from the stack.
    pub(crate) fn keep(self, n: u32) -> Self {
        self.put(n).op(b"0")
    }
    pub(crate) fn many(mut self, n: u32, each: impl Fn(Self, u32) -> Self) -> Self {
        for i in 0..n {
            self = each(self, i);
        }
        self
    }
    pub(crate) fn object(
        self,
        module: &str,
        name: &str,
        fields: impl FnOnce(Self) -> Self,
    ) -> Self {
        fields(self.class(module, name).op(b")\x81}(")).op(b"ub")
    }
    pub(crate) fn size(self, dims: &[u32]) -> Self {
        let tuple = dims
            .iter()
            .fold(self.class("torch", "Size").op(b"("), |a, d| a.int(*d));
        tuple.op(b"t\x85R")
    }
    pub(crate) fn properties(self, rest: impl FnOnce(Self) -> Self) -> Self {
        let state = self
            .class(MD, "TensorProperties")
            .op(b")\x81(")
            .class("torch", "float32")
            .op(b"N\x89N\x89");
        rest(state).op(b"tb")
    }
    pub(crate) fn item(
        self,
        key: impl FnOnce(Self) -> Self,
        more: impl FnOnce(Self) -> Self,
    ) -> Self {
        let index = self.object(MD, "MetadataIndex", |a| key(a.str("fqn")));
        index.object(FS, "_StorageInfo", |a| {
            more(
                a.str("relative_path")
                    .str("__0_0.distcp")
                    .str("offset")
                    .int(0)
                    .str("length")
                    .int(1),
            )
        })
    }
    /// The whole: entries, items and further fields.
    pub(crate) fn metadata(
        self,
        entries: impl FnOnce(Self) -> Self,
        items: impl FnOnce(Self) -> Self,
        more: impl FnOnce(Self) -> Self,
    ) -> Vec<u8> {
        let whole = self.object(MD, "Metadata", |a| {
            let a = entries(a.str("state_dict_metadata").op(b"}(")).op(b"u");
            more(items(a.str("storage_data").op(b"}(")).op(b"u"))
        });
        whole.op(b".").0
    }
    pub(crate) fn empty(self) -> Vec<u8> {
        self.metadata(same, same, same)
    }
}

pub(crate) fn same(a: Asm) -> Asm {
    a
}

pub(crate) fn bytes_item(a: Asm, key: &str) -> Asm {
    a.str(key).class(MD, "BytesStorageMetadata").op(b")\x81")
}
