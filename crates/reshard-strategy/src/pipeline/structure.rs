//! All on which the plan of a rank depends, in a form that is quickly made and compared.

use crate::{Declares, Result, declaration_digest};
use reshard_comm::Comm;
use reshard_model::{
    Data, Dims, FlatStateDict, Path, PathOfKey, Payload, ReplicaId, Sharded, Step,
};
use reshard_plan::{Declared, PlannerData};

/// Fields one after the other. Each is of a known length, or begins with its length, so that different fields never make equal bytes.
pub(super) struct Structure(Vec<u8>);

impl Structure {
    /// All of the leaves but their data. Settings are to follow.
    pub(super) fn of(state: &FlatStateDict) -> Self {
        // Some 200 bytes a leaf, in most states.
        let mut out = Self(Vec::with_capacity(256 * (state.len() + 1)));
        out.number(state.len() as u64);
        for (path, leaf) in state {
            out.path(path);
            out.leaf(leaf);
        }
        out
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }

    /// Who this rank is, and who decides.
    pub(super) fn ranks(&mut self, comm: &Comm<'_>) {
        for number in [comm.rank().0, comm.size(), comm.coordinator().0] {
            self.number(number.into());
        }
    }

    fn number(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn option(&mut self, text: Option<&str>) {
        self.0.push(text.is_some().into());
        self.text(text.unwrap_or(""));
    }

    fn dims(&mut self, dims: &Dims) {
        self.number(dims.len() as u64);
        for n in dims {
            self.number(*n);
        }
    }

    fn path(&mut self, path: &Path) {
        self.number(path.0.len() as u64);
        for step in &path.0 {
            match step {
                Step::Key(key) => {
                    self.0.push(0);
                    self.text(key);
                }
                Step::Index(i) => {
                    self.0.push(1);
                    self.number(*i);
                }
            }
        }
    }

    fn paths(&mut self, paths: &PathOfKey) {
        self.number(paths.len() as u64);
        for (key, path) in paths {
            self.text(key);
            self.path(path);
        }
    }

    pub(super) fn planner_data(&mut self, data: Option<&PlannerData>) {
        match data {
            None => self.0.push(0),
            Some(PlannerData::Paths(paths)) => {
                self.0.push(1);
                self.paths(paths);
            }
            Some(other) => {
                self.0.push(2);
                self.text(&format!("{other:?}"));
            }
        }
    }

    /// What is declared otherwise than the leaves show.
    pub(super) fn declares(&mut self, declares: &Declares) -> Result<()> {
        self.number(declares.replicas.len() as u64);
        for (path, replica) in &declares.replicas {
            self.path(path);
            self.replica(replica);
        }
        self.number(declares.elsewhere.len() as u64);
        let mut elsewhere = Declared::default();
        elsewhere.leaves.clone_from(&declares.elsewhere);
        self.0.extend_from_slice(&declaration_digest(&elsewhere)?);
        Ok(())
    }

    fn leaf(&mut self, leaf: &Sharded) {
        let (key, replica, tag) = match leaf {
            Sharded::Tensor(t) => {
                self.0.push(0);
                self.0.extend_from_slice(&[
                    t.dtype as u8,
                    t.allow_shape_mismatch.into(),
                    t.optional.into(),
                    t.axis_fragmentations.is_some().into(),
                    t.flattened_range.is_some().into(),
                ]);
                self.number(t.prepend_axis_num as u64);
                for dims in [&t.local_shape, &t.global_shape, &t.global_offset] {
                    self.dims(dims);
                }
                if let Some(fragments) = &t.axis_fragmentations {
                    self.dims(fragments);
                }
                if let Some(range) = &t.flattened_range {
                    self.number(range.start);
                    self.number(range.end);
                }
                // Policies see the device.
                match &t.data {
                    Data::Device(d) => self.option(Some(d.buffer().device())),
                    Data::None | Data::Host(_) | Data::Lazy(_) => self.option(None),
                }
                (&t.key, &t.replica_id, &t.tag)
            }
            Sharded::Object(o) => {
                self.0.extend_from_slice(&[1, o.optional.into()]);
                self.dims(&o.global_shape);
                self.dims(&o.global_offset);
                // Ranks are balanced by it.
                self.number(match &o.data {
                    Payload::Encoded { bytes, .. } => bytes.len() as u64,
                    Payload::None | Payload::Value(_) => 0,
                });
                (&o.key, &o.replica_id, &o.tag)
            }
        };
        self.text(key);
        self.option(tag.as_deref());
        self.replica(replica);
    }

    fn replica(&mut self, replica: &ReplicaId) {
        self.number(replica.0.len() as u64);
        for r in &replica.0 {
            self.0.extend_from_slice(&r.to_le_bytes());
        }
    }
}
