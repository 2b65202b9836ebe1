//! What changes a variable, on the types that hold one. They deref to it for reading only: another variable in its place would not
//! keep what they promise of the parts.

macro_rules! forward_changes {
    ($kind:ident) => {
        impl $kind {
            /// Makes every element that of `value` at the same place. Parts that do not lie here are left out.
            ///
            /// # Errors
            /// When `value` has another shape or element type, and when the memory of a part is shared with somebody or can't be
            /// written. Then nothing has changed.
            pub fn assign(&mut self, value: &Tensor) -> Result<()> {
                self.variable_mut().update($crate::number::Op::Update, value)
            }

            /// Adds to every element that of `value` at the same place, as [`assign`](Self::assign) does with assignment. Integers
            /// wrap around; 16-bit floats are computed in float32.
            ///
            /// # Errors
            /// As there; and for element types without arithmetic.
            pub fn assign_add(&mut self, value: &Tensor) -> Result<()> {
                self.variable_mut().update($crate::number::Op::Add, value)
            }

            /// As [`assign_add`](Self::assign_add), with subtraction.
            ///
            /// # Errors
            /// As there.
            pub fn assign_sub(&mut self, value: &Tensor) -> Result<()> {
                self.variable_mut().update($crate::number::Op::Sub, value)
            }

            /// What `task` loads: its parts, with their memory, which is filled in place, or without, when they have none. While
            /// they are away the parts have no data; [`fill`](Self::fill) brings them back.
            ///
            /// A load that fails gives the template back, and with it the memory, which [`reclaim_from`](Self::reclaim_from) takes.
            pub fn templates(&mut self, task: u32) -> Vec<ShardedTensor> {
                self.variable_mut().templates(task)
            }

            /// Gives the parts of `task` what was loaded, in the order of [`templates`](Self::templates).
            ///
            /// # Errors
            /// When there are more or fewer than parts, or one has another shape or element type. Then no part has changed.
            pub fn fill(&mut self, task: u32, loaded: impl IntoIterator<Item = Tensor>) -> Result<()> {
                self.variable_mut().fill(task, loaded)
            }

            /// Puts what `task` loads under a key of a template, as a list; nothing, if it has no parts.
            pub fn template_into(&mut self, template: &mut StateDict, key: impl Into<Step>, task: u32) {
                self.variable_mut().template_into(template, key, task)
            }

            /// Takes what a load returned under the key of [`template_into`](Self::template_into).
            ///
            /// # Errors
            /// As [`fill`](Self::fill); and when it is no list of tensors.
            pub fn restore_from(&mut self, loaded: &mut ValueTree, key: &str, task: u32) -> Result<()> {
                self.variable_mut().restore_from(loaded, key, task)
            }

            /// Takes its memory back out of the template that a failed load gives back.
            ///
            /// # Errors
            /// When that is not what [`template_into`](Self::template_into) had put there.
            pub fn reclaim_from(&mut self, template: &mut StateDict, key: &str, task: u32) -> Result<()> {
                self.variable_mut().reclaim_from(template, key, task)
            }
        }
    };
}
