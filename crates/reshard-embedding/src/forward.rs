//! The methods of the types that hold a variable. These types deref to it for reading only: if you could put another variable in its
//! place, their promises about the parts would not hold.

/// For types with a field `variable`.
macro_rules! hold_variable {
    ($kind:ident) => {
        /// The fields and methods of all variables.
        impl std::ops::Deref for $kind {
            type Target = Variable;
            fn deref(&self) -> &Variable {
                &self.variable
            }
        }

        impl $kind {
            pub(crate) fn variable_mut(&mut self) -> &mut Variable {
                &mut self.variable
            }
        }

        forward_changes!($kind);
    };
}

/// For types in the parts of a grid.
macro_rules! make_by_cut {
    ($kind:ident) => {
        impl $kind {
            /// Makes parts and places them on tasks, round robin. `initializer` makes each part from (full shape, offset, part shape).
            ///
            /// # Errors
            /// The cut does not fit the shape, or cuts an axis along which this type has no parts; there is no task, the initializer
            /// fails, or its result does not have the shape and element type of the part.
            pub fn create<'a>(
                name: &str,
                shape: &[u64],
                dtype: DType,
                cut: impl Into<Cut<'a>>,
                tasks: impl Into<Tasks>,
                initializer: impl FnMut(&[u64], &[u64], &[u64]) -> reshard_model::Result<Tensor>,
            ) -> Result<Self> {
                let tasks = tasks.into();
                let mut out = Self::declare(name, shape, dtype, cut, tasks)?;
                out.variable.initialize(tasks, initializer)?;
                Ok(out)
            }

            /// As [`create`](Self::create), but without data, for a load or for [`fill`](Self::fill).
            ///
            /// # Errors
            /// Those of [`create`](Self::create).
            pub fn declare<'a>(
                name: &str,
                shape: &[u64],
                dtype: DType,
                cut: impl Into<Cut<'a>>,
                tasks: impl Into<Tasks>,
            ) -> Result<Self> {
                let tasks = tasks.into().check(name)?;
                let grid = cut.into().grid(tasks, shape, dtype)?;
                Self::on(name, dtype, &grid, (0..tasks.count()).cycle())
            }
        }
    };
}

/// The methods that change a variable, for types with a method `variable_mut`.
macro_rules! forward_changes {
    ($kind:ident) => {
        impl $kind {
            /// Sets every element to the element of `value` at the same place. Parts in other processes are skipped.
            ///
            /// # Errors
            /// `value` has another shape or element type, or the memory of a part is shared or can't be written. Then nothing
            /// has changed.
            pub fn assign(&mut self, value: &Tensor) -> Result<()> {
                self.variable_mut()
                    .update($crate::number::Op::Update, value)
            }

            /// Adds to every element the element of `value` at the same place. Otherwise it is like [`assign`](Self::assign).
            /// Integers wrap around; 16-bit floats are computed in float32.
            ///
            /// # Errors
            /// Those of `assign`, and element types without arithmetic.
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

            /// The templates of the parts of `task`, for a load. A part with memory gives its memory to the template, and the load
            /// fills it in place. Until [`fill`](Self::fill) returns it, the part has no data.
            ///
            /// If a load fails, it returns the template with the memory, and [`reclaim_from`](Self::reclaim_from) takes this back.
            pub fn templates(&mut self, task: u32) -> Vec<ShardedTensor> {
                self.variable_mut().templates(task)
            }

            /// Puts loaded tensors into the parts of `task`, in the order of [`templates`](Self::templates).
            ///
            /// # Errors
            /// The number of tensors differs from that of the parts, or one has another shape or element type. Then no part has
            /// changed.
            pub fn fill(
                &mut self,
                task: u32,
                loaded: impl IntoIterator<Item = Tensor>,
            ) -> Result<()> {
                self.variable_mut().fill(task, loaded)
            }

            /// Puts the templates of `task` under a key of a state dict, as a list. If the task has no parts, it puts nothing there.
            pub fn template_into(
                &mut self,
                template: &mut StateDict,
                key: impl Into<Step>,
                task: u32,
            ) {
                $crate::variable::insert(template, key, self.templates(task));
            }

            /// Takes the loaded tensors from the key that was given to [`template_into`](Self::template_into).
            ///
            /// # Errors
            /// Those of [`fill`](Self::fill), or there is no list of tensors under the key.
            pub fn restore_from(
                &mut self,
                loaded: &mut ValueTree,
                key: &str,
                task: u32,
            ) -> Result<()> {
                let tensors = self.loaded(loaded, key)?;
                self.fill(task, tensors)
            }

            /// Takes the memory of the parts back from the template that a failed load returns.
            ///
            /// # Errors
            /// The template does not have what [`template_into`](Self::template_into) put there.
            pub fn reclaim_from(
                &mut self,
                template: &mut StateDict,
                key: &str,
                task: u32,
            ) -> Result<()> {
                self.variable_mut().reclaim_from(template, key, task)
            }
        }
    };
}
