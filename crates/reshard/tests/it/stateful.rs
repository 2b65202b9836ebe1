//! Values that make and take their own state.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    Dialect, LocalGroup, Rank, Region, ShardedTensor, StateDict, Stateful, Tensor, Value,
    ValueTree, blocking, model::BoxError,
};
use reshard_comm::{ProcessGroup, testkit::on_ranks};
use std::sync::Arc;

/// An optimizer of which each rank has rows.
#[derive(Debug)]
struct Optimizer {
    rank: u64,
    momentum: Option<Tensor>,
    steps: i64,
    fails: &'static str,
}

impl Optimizer {
    fn new(rank: Rank, fill: f32, steps: i64) -> Self {
        Self {
            rank: rank.0.into(),
            momentum: Some(Tensor::from_vec(&[2, 3], vec![fill; 6]).unwrap()),
            steps,
            fails: "",
        }
    }

    fn fail(&self, method: &str) -> Result<(), BoxError> {
        if self.fails == method {
            return Err("out of cheese".into());
        }
        Ok(())
    }
}

impl Stateful for Optimizer {
    fn state_dict(&self) -> Result<StateDict, BoxError> {
        self.fail("state_dict")?;
        let mut state = StateDict::new();
        let momentum = self.momentum.clone().ok_or("no momentum")?;
        let rows = Region::new([self.rank * 2, 0], [2, 3]);
        let leaf = ShardedTensor::region_of("optim.m", momentum.dtype(), &[4, 3], rows);
        state.insert("m", leaf.with_data(momentum));
        state.insert("steps", self.steps);
        state.insert(
            "lr",
            Value::List(vec![Value::Tensor(Tensor::from_vec(&[1], vec![0.5f32])?)]),
        );
        Ok(state)
    }

    fn load_state_dict(&mut self, state: ValueTree) -> Result<(), BoxError> {
        self.fail("load_state_dict")?;
        let leaf = |key: &str| {
            state
                .get(key)
                .and_then(|v| v.leaf())
                .ok_or("a part is missing")
        };
        self.momentum = leaf("m")?.as_tensor().cloned();
        self.steps = leaf("steps")?.as_int().ok_or("no int")?;
        let lr = Value::from(state.get("lr").cloned().ok_or("no lr")?);
        let lr = lr.as_seq().and_then(|s| s[0].as_tensor().cloned());
        assert_eq!(lr.unwrap().to_vec::<f32>().unwrap(), [0.5]);
        Ok(())
    }
}

#[test]
fn state_is_made_for_a_save_and_taken_after_a_load() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let home = Arc::new(tempfile::tempdir().unwrap());
        on_ranks(LocalGroup::new(2), move |group| {
            let home = Arc::clone(&home);
            async move {
                let url = home.path().join("ckpt").display().to_string();
                let rank = group.rank();
                let saved = Optimizer::new(rank, rank.0 as f32 + 1., 12);
                let mut state = StateDict::new();
                state.insert("epoch", 3);
                let save = reshard::save(&state, &url).dialect(dialect).group(&group);
                save.stateful("optim", &saved).await.unwrap();

                let mut loaded = Optimizer::new(rank, 0., 0);
                let kept = loaded.momentum.clone().unwrap();
                let load = reshard::load(state, &url).group(&group);
                let rest = load.stateful("optim", &mut loaded).await.unwrap();
                assert_eq!(loaded.steps, 12);
                let momentum = loaded.momentum.unwrap();
                assert_eq!(momentum.to_vec::<f32>().unwrap(), [rank.0 as f32 + 1.; 6]);
                assert!(
                    !momentum.same_buffer(&kept),
                    "the load has memory of its own"
                );
                assert!(rest.get("optim").is_none());
                let epoch = rest
                    .get("epoch")
                    .and_then(|v| v.leaf())
                    .and_then(|v| v.as_int());
                assert_eq!(epoch, Some(3));
            }
        });
    }
}

#[test]
fn a_value_that_fails_is_told_to_all_ranks_with_its_key_and_rank() {
    let home = Arc::new(tempfile::tempdir().unwrap());
    on_ranks(LocalGroup::new(2), move |group| {
        let home = Arc::clone(&home);
        async move {
            let url = home.path().join("ckpt").display().to_string();
            let (rank, state) = (group.rank(), StateDict::new());
            let mut optimizer = Optimizer::new(rank, 1., 1);
            let faulty = |method| if rank.0 == 1 { method } else { "" };

            optimizer.fails = faulty("state_dict");
            let save = reshard::save(&state, &url).group(&group);
            let e = save
                .stateful("optim", &optimizer)
                .await
                .unwrap_err()
                .to_string();
            assert!(
                e.contains("rank 1: `state_dict` of optim failed: out of cheese"),
                "{e}"
            );

            optimizer.fails = "";
            let save = || reshard::save(&state, &url).group(&group);
            save().stateful("optim", &optimizer).await.unwrap();

            for method in ["state_dict", "load_state_dict"] {
                optimizer.fails = faulty(method);
                let load = reshard::load(StateDict::new(), &url).group(&group);
                let e = load
                    .stateful("optim", &mut optimizer)
                    .await
                    .unwrap_err()
                    .to_string();
                let expected = format!("rank 1: `{method}` of optim failed: out of cheese");
                assert!(e.contains(&expected), "{e}");
            }

            // Only one rank has a value.
            optimizer.fails = "";
            let mut load = reshard::load(StateDict::new(), &url).group(&group);
            if rank.0 == 1 {
                load = load.stateful("optim", &mut optimizer);
            }
            load.await.unwrap();
        }
    });
}

#[test]
fn a_key_has_one_value() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("ckpt").display().to_string();
    let optimizer = Optimizer::new(Rank(0), 1., 1);
    let mut state = StateDict::new();
    state.insert("optim", 1);
    let save = reshard::save(&state, &url).stateful("optim", &optimizer);
    let e = blocking::run(save).unwrap_err().to_string();
    assert!(e.contains("optim is in the state dict already"), "{e}");
    let twice = StateDict::new();
    let save = reshard::save(&twice, &url)
        .stateful("o", &optimizer)
        .stateful("o", &optimizer);
    assert!(
        blocking::run(save)
            .unwrap_err()
            .to_string()
            .contains("o is in the state dict")
    );
    let save = reshard::save(&twice, &url).stateful("content_metadata", &optimizer);
    let e = blocking::run(save).unwrap_err().to_string();
    assert!(e.contains("is reserved for Megatron Core"), "{e}");
}

/// A counter.
struct Steps {
    done: i64,
    fails: &'static str,
}

impl Stateful for Steps {
    fn state_dict(&self) -> Result<StateDict, BoxError> {
        if self.fails == "state_dict" {
            return Err("out of cheese".into());
        }
        let mut state = StateDict::new();
        state.insert("done", self.done);
        Ok(state)
    }

    fn load_state_dict(&mut self, state: ValueTree) -> Result<(), BoxError> {
        if self.fails == "load_state_dict" {
            return Err("out of cheese".into());
        }
        let done = state.get("done").and_then(|v| v.leaf());
        self.done = done.and_then(Value::as_int).ok_or("no steps")?;
        Ok(())
    }
}

#[test]
fn a_load_that_failed_gives_the_callers_template_back_without_leaves_of_values() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("ckpt").display().to_string();
    let steps = Steps { done: 5, fails: "" };
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let (state, template) = (StateDict::new(), || {
            let mut template = StateDict::new();
            template.insert("other", 1);
            template
        });
        let save = reshard::save(&state, &url).stateful("steps", &steps);
        let save = save.dialect(dialect).overwrite(dialect == Dialect::Dcp);
        blocking::run(save).unwrap();

        let mut loaded = Steps { done: 0, fails: "" };
        let mut again = StateDict::new();
        for fails in ["state_dict", "load_state_dict", ""] {
            loaded.fails = fails;
            let load = reshard::load(again, &url).stateful("steps", &mut loaded);
            again = match blocking::run(load) {
                Ok(_) => break,
                Err(e) => e.into_parts().1,
            };
            assert!(again.get("steps").is_none(), "{fails}");
        }
        assert_eq!(loaded.done, 5, "the template of the failed loads is good");

        // A key that is taken stays the caller's.
        let load = reshard::load(template(), &url).stateful("other", &mut loaded);
        let given = blocking::run(load).unwrap_err().into_parts().1;
        assert_eq!(format!("{given:?}"), format!("{:?}", template()));
        let none = home.path().join("none").display().to_string();
        let load = reshard::load(template(), &none).stateful("steps", &mut loaded);
        let given = blocking::run(load).unwrap_err().into_parts().1;
        assert_eq!(format!("{given:?}"), format!("{:?}", template()));
    }
}
