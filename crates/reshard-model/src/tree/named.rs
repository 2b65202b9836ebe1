//! Values by their names, with errors that say what is there.

use super::{Step, Tree, ValueTree};
use crate::{Leaf, ModelError, Result, Sharded, StateDict, Tensor, Value};

/// So many names are told of what is there.
const SHOWN: usize = 10;

impl<L> Tree<L> {
    /// The steps to what a name means: a key of this dict, or keys and indices joined with dots, as PyTorch's names of parameters. A key that
    /// contains dots is found, too.
    fn steps_of(&self, name: &str) -> Option<Vec<Step>> {
        // The longest key wins: a state dict is often flat, and its keys have dots.
        let dots = name.rmatch_indices('.').map(|(at, _)| at);
        let ends = std::iter::once(name.len()).chain(dots);
        for end in ends {
            let (first, rest) = (&name[..end], name.get(end + 1..));
            let index = first.parse().ok().map(Step::Index);
            for step in [Some(Step::from(first)), index].into_iter().flatten() {
                let Some(below) = self.step(&step) else {
                    continue;
                };
                match rest.map(|rest| below.steps_of(rest)) {
                    None => return Some(vec![step]),
                    Some(Some(mut steps)) => {
                        steps.insert(0, step);
                        return Some(steps);
                    }
                    Some(None) => {}
                }
            }
        }
        None
    }

    /// What a name means: a key of this dict, or keys and indices joined with dots. [`get`](Self::get) finds only keys.
    pub fn find(&self, name: &str) -> Option<&Self> {
        self.at(&self.steps_of(name)?)
    }

    /// The error for a name that nothing has.
    fn no_such(&self, name: &str) -> ModelError {
        let (mut names, mut count) = (Vec::new(), 0);
        self.visit(&mut |path, _| {
            count += 1;
            if names.len() < SHOWN {
                names.push(super::Path::from(path).to_string());
            }
        });
        let what = match count - names.len() {
            _ if names.is_empty() => "the state is empty".into(),
            0 => format!("the state has {}", names.join(", ")),
            more => format!("the state has {} and {more} more", names.join(", ")),
        };
        ModelError::NotFound {
            key: name.into(),
            what,
        }
    }
}

impl ValueTree {
    /// A value by its name: a key of this dict, or keys and indices joined with dots.
    ///
    /// # Errors
    /// [`ModelError::NotFound`], with the names that are there. [`ModelError::Invalid`] if a dict or list has that name.
    pub fn value(&self, name: &str) -> Result<&Value> {
        match self.find(name).ok_or_else(|| self.no_such(name))? {
            Self::Leaf(value) => Ok(value),
            Self::List(all) => Err(other(name, &format!("a list of {}", all.len()), "value")),
            Self::Dict(_) => Err(other(name, "a dict", "value")),
        }
    }

    /// An int by its name, as [`value`](Self::value) finds it.
    ///
    /// # Errors
    /// As [`value`](Self::value); also if it is no int of 64 bits.
    pub fn int(&self, name: &str) -> Result<i64> {
        let value = self.value(name)?;
        value.as_int().ok_or_else(|| not_a(name, value, "int"))
    }

    /// A float by its name, as [`value`](Self::value) finds it. An int of 64 bits is one, too.
    ///
    /// # Errors
    /// As [`value`](Self::value); also if it is no number.
    pub fn float(&self, name: &str) -> Result<f64> {
        match self.value(name)? {
            Value::Float(float) => Ok(*float),
            Value::Int(int) => Ok(*int as f64),
            value => Err(not_a(name, value, "float")),
        }
    }

    /// A text by its name, as [`value`](Self::value) finds it.
    ///
    /// # Errors
    /// As [`value`](Self::value); also if it is no str.
    pub fn str(&self, name: &str) -> Result<&str> {
        let value = self.value(name)?;
        value.as_str().ok_or_else(|| not_a(name, value, "str"))
    }

    /// A truth value by its name, as [`value`](Self::value) finds it.
    ///
    /// # Errors
    /// As [`value`](Self::value); also if it is no bool.
    pub fn bool(&self, name: &str) -> Result<bool> {
        match self.value(name)? {
            Value::Bool(is) => Ok(*is),
            value => Err(not_a(name, value, "bool")),
        }
    }

    /// A tensor by its name, as [`value`](Self::value) finds it.
    ///
    /// # Errors
    /// As [`value`](Self::value); also if it is no tensor in host memory.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        let value = self.value(name)?;
        value
            .as_tensor()
            .ok_or_else(|| not_a(name, value, "tensor"))
    }

    /// Takes a tensor out, so that yours is the only handle on it. In a list `None` stays in its place.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor). Nothing is taken out then.
    pub fn take_tensor(&mut self, name: &str) -> Result<Tensor> {
        self.tensor(name)?;
        let steps = self.steps_of(name).unwrap_or_default();
        let taken = steps.split_last().and_then(|(last, above)| {
            let none = Self::Leaf(Value::None);
            match self.at_mut(above)? {
                Self::Dict(d) => d.shift_remove(last),
                tree => Some(std::mem::replace(
                    tree.at_mut(std::slice::from_ref(last))?,
                    none,
                )),
            }
        });
        let tensor = taken.and_then(|tree| tree.into_leaf()?.into_tensor());
        tensor.ok_or_else(|| self.no_such(name))
    }
}

/// The error for something that is not what was asked for.
fn other(name: &str, is: &str, wanted: &str) -> ModelError {
    ModelError::invalid(name, format!("it is {is}, not {}", with_article(wanted)))
}

fn with_article(name: &str) -> String {
    let article = match name
        .to_ascii_lowercase()
        .starts_with(['a', 'e', 'i', 'o', 'u'])
    {
        true => "an",
        false => "a",
    };
    format!("{article} {name}")
}

fn not_a(name: &str, value: &Value, wanted: &str) -> ModelError {
    match value {
        Value::Device(_) if wanted == "tensor" => {
            ModelError::invalid(name, "it is in device memory; `value` returns it")
        }
        Value::BigInt(_) => ModelError::invalid(name, "it is an int of more than 64 bits"),
        value => other(name, &with_article(&value.type_name()), wanted),
    }
}

impl StateDict {
    /// Puts a leaf under its own key. If something is there already, the two become a list, and a list grows, so that no piece displaces another one.
    ///
    /// ```
    /// use reshard_model::{ShardedTensor, StateDict, Tensor};
    /// let mut state = StateDict::new();
    /// state.insert_piece(ShardedTensor::full("weight", Tensor::from_vec(&[2], vec![1f32, 2.])?));
    /// assert!(state.get("weight").is_some());
    /// # Ok::<(), reshard_model::ModelError>(())
    /// ```
    pub fn insert_piece(&mut self, leaf: impl Into<Sharded>) {
        let leaf = leaf.into();
        let key = leaf.key().to_owned();
        let new = Self::Leaf(match leaf {
            Sharded::Tensor(tensor) => Leaf::Tensor(tensor),
            Sharded::Object(object) => Leaf::Object(object),
        });
        match self.at_mut(&[Step::from(&*key)]) {
            None => drop(self.insert_tree(key, new)),
            Some(Self::List(all)) => all.push(new),
            Some(one) => {
                let first = std::mem::take(one);
                *one = Self::List(vec![first, new]);
            }
        }
    }

    /// Puts leaves under their own keys, as [`insert_piece`](Self::insert_piece) does with one: all pieces that
    /// [`from_mesh`](crate::ShardedTensor::from_mesh) returns, for example.
    pub fn insert_pieces(&mut self, leaves: impl IntoIterator<Item: Into<Sharded>>) {
        for leaf in leaves {
            self.insert_piece(leaf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Region, ShardedTensor};

    fn state() -> ValueTree {
        let tensor = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
        let mut inner = ValueTree::new();
        inner.insert("lr", 0.5);
        inner.insert("name", "adam");
        inner.insert("fused", true);
        let mut state = ValueTree::new();
        state.insert("step", 7);
        state.insert("layer.weight", Value::Tensor(tensor.clone()));
        state.insert_tree("optim", inner);
        let list = vec![Value::Tensor(tensor), Value::Int(1)];
        state.insert_tree("all", ValueTree::from(Value::List(list)));
        state
    }

    #[test]
    fn values_are_found_by_keys_and_by_paths() {
        let mut state = state();
        assert_eq!(state.int("step").unwrap(), 7);
        assert_eq!(state.float("step").unwrap(), 7.0);
        assert_eq!(state.float("optim.lr").unwrap(), 0.5);
        assert_eq!(state.str("optim.name").unwrap(), "adam");
        assert!(state.bool("optim.fused").unwrap());
        assert_eq!(state.int("all.1").unwrap(), 1);
        let weight = state.tensor("layer.weight").unwrap().clone();
        assert_eq!(weight.to_vec::<f32>().unwrap(), [1., 2.]);
        assert_eq!(state.take_tensor("layer.weight").unwrap(), weight);
        assert_eq!(state.take_tensor("all.0").unwrap(), weight);
        assert!(state.get("layer.weight").is_none());
        assert!(matches!(state.value("all.0"), Ok(Value::None)));
        assert_eq!(state.int("all.1").unwrap(), 1);
    }

    #[test]
    fn the_longest_key_wins() {
        let mut state = ValueTree::new();
        let mut inner = ValueTree::new();
        inner.insert("b", 1);
        state.insert_tree("a", inner);
        state.insert("a.b", 2);
        assert_eq!(state.int("a.b").unwrap(), 2);
        state.remove("a.b");
        assert_eq!(state.int("a.b").unwrap(), 1);
    }

    #[test]
    fn errors_say_what_is_there() {
        let mut state = state();
        let text = |e: ModelError| e.to_string();
        assert_eq!(
            text(state.int("stepp").unwrap_err()),
            "no \"stepp\": the state has step, layer.weight, optim.lr, optim.name, optim.fused, all.0, all.1"
        );
        assert_eq!(
            state.int("stepp").unwrap_err().kind(),
            crate::ErrorKind::NotFound
        );
        assert_eq!(
            text(ValueTree::new().int("a").unwrap_err()),
            "no \"a\": the state is empty"
        );
        assert_eq!(
            text(state.int("optim.lr").unwrap_err()),
            "optim.lr: it is a float, not an int"
        );
        assert_eq!(
            text(state.value("optim").unwrap_err()),
            "optim: it is a dict, not a value"
        );
        assert_eq!(
            text(state.tensor("all").unwrap_err()),
            "all: it is a list of 2, not a value"
        );
        assert_eq!(
            text(state.take_tensor("step").unwrap_err()),
            "step: it is an int, not a tensor"
        );
        assert_eq!(state.int("step").unwrap(), 7);
        (0..20).for_each(|i| drop(state.insert(format!("x{i}"), i)));
        let error = text(state.int("y").unwrap_err());
        assert!(error.ends_with("x0, x1, x2 and 17 more"), "{error}");
    }

    #[test]
    fn no_piece_displaces_another() {
        let piece = |row| {
            let data = Tensor::from_vec(&[1, 2], vec![0f32; 2]).unwrap();
            let region = Region::new([row, 0], [1, 2]);
            ShardedTensor::region_of("w", data.dtype(), &[3, 2], region).with_data(data)
        };
        let mut state = StateDict::new();
        state.insert_pieces((0..3).map(piece));
        let Some(Tree::List(pieces)) = state.get("w") else {
            panic!("{state:?}");
        };
        assert_eq!(pieces.len(), 3);
        let mut state = StateDict::new();
        state.insert_piece(piece(1));
        assert!(state.get("w").and_then(Tree::leaf).is_some());
    }
}
