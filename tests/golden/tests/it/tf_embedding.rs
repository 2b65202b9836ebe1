//! What TensorFlow 2.21 answers about embeddings and sharded variables, case by case.
//!
//! Where TensorFlow is wrong (wrong rows inside `tf.function`, rows in another order than asked for, slices that don't clamp,
//! values that are ignored) the golden still holds its answer. Then the test knows the right one, and says that the two differ.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use reshard::{Tensor, model::Element};
use reshard_embedding::{
    Combiner, EmbeddingError, Ids, Index, LookupOptions, Permutation, ShardedVariable, SparseIds,
    Strategy, embedding_lookup, embedding_lookup_sparse, lookup_gradients,
    safe_embedding_lookup_sparse,
};
use reshard_golden::cases;
use serde_json::Value;

type Result<T> = std::result::Result<T, EmbeddingError>;

fn ints(v: &Value) -> Vec<i64> {
    v.as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_i64().unwrap())
        .collect()
}

fn sizes(case: &Value) -> Vec<u64> {
    ints(&case["shard_rows"])
        .into_iter()
        .map(|n| n as u64)
        .collect()
}

/// Nested lists as a shape and elements; an empty list ends the shape. Some numbers are text, as Python writes them.
fn array(v: &Value) -> (Vec<u64>, Vec<f64>) {
    match v {
        Value::String(s) if s.starts_with('[') => {
            let quoted = s
                .replace("nan", "\"nan\"")
                .replace("-inf", "\"-Inf\"")
                .replace("inf", "\"inf\"");
            array(&serde_json::from_str(&quoted).unwrap())
        }
        Value::String(s) => (vec![], vec![s.parse().unwrap()]),
        Value::Null => (vec![], vec![f64::NAN]),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(array).collect();
            let inner = items.first().map_or(&[][..], |(shape, _)| shape);
            let shape = [&[items.len() as u64], inner].concat();
            (shape, items.iter().flat_map(|(_, v)| v).copied().collect())
        }
        number => (vec![], vec![number.as_f64().unwrap()]),
    }
}

fn floats(v: &Value) -> Vec<f32> {
    array(v).1.into_iter().map(|x| x as f32).collect()
}

fn ids(v: &Value) -> Ids<'static> {
    let (shape, values) = array(v);
    Ids::shaped(
        values.into_iter().map(|x| x as i64).collect::<Vec<_>>(),
        &shape,
    )
    .unwrap()
}

/// Parts of so many rows; element `i` of all rows is what `element` says.
fn table<T: Element>(
    rows: &[u64],
    inner: &[u64],
    element: impl Fn(usize) -> T,
) -> Result<ShardedVariable> {
    let width: u64 = inner.iter().product();
    let mut at = 0;
    let parts = rows.iter().map(|&n| {
        let elements = (at..at + n * width).map(|i| element(i as usize)).collect();
        at += n * width;
        Tensor::from_vec(&[&[n], inner].concat(), elements).unwrap()
    });
    ShardedVariable::from_parts("table", parts)
}

/// A row holds its number.
fn numbered(rows: &[u64]) -> ShardedVariable {
    table(rows, &[], |i| i as f32).unwrap()
}

/// The part and its row that each row number is, from the sizes alone.
fn places(rows: &[u64]) -> Vec<Vec<i64>> {
    let of_part = |(part, &n): (usize, &u64)| (0..n).map(move |row| vec![part as i64, row as i64]);
    rows.iter().enumerate().flat_map(of_part).collect()
}

fn is_even(rows: &[u64]) -> bool {
    let (total, n) = (rows.iter().sum::<u64>(), rows.len() as u64);
    rows.iter()
        .enumerate()
        .all(|(i, &r)| r == total / n + u64::from((i as u64) < total % n))
}

#[test]
fn an_id_is_looked_up_where_tensorflow_finds_it_and_by_div_where_it_is() {
    let mut misread = 0;
    for case in cases("embedding_lookup") {
        let rows = sizes(&case);
        if rows.is_empty() {
            assert!(
                case["error"].is_object() && ShardedVariable::from_parts("table", []).is_err(),
                "{case}"
            );
            continue;
        }
        // A row is [part, row in the part].
        let places = places(&rows);
        let table = table(&rows, &[2], |i| places[i / 2][i % 2]).unwrap();
        let Ok(strategy) = serde_json::from_value::<Strategy>(case["strategy"].clone()) else {
            assert!(case["error"].is_object(), "{case}");
            continue;
        };
        let div = strategy == Strategy::Div;
        let options = LookupOptions::new().strategy(strategy);
        let ids = ids(&case["ids"]);
        let got = embedding_lookup(&table, &ids, &options);
        let tensorflow: Option<Vec<i64>> = case
            .get("rows")
            .map(|rows| array(rows).1.into_iter().map(|x| x as i64).collect());
        if div && (!is_even(&rows) || case["tag"] == "fewer rows than shards") {
            // TensorFlow computes places from the number of rows and parts alone; here they are where they are.
            let want: Vec<i64> = ids
                .values()
                .iter()
                .flat_map(|&id| places[id as usize].clone())
                .collect();
            assert_eq!(got.unwrap().to_vec::<i64>().unwrap(), want, "{case}");
            misread += usize::from(tensorflow != Some(want));
            continue;
        }
        match tensorflow {
            None => {
                assert!(case["error"].is_object(), "{case}");
                let message = got.unwrap_err().to_string();
                assert!(message.contains("out of range"), "{case}: {message}");
            }
            Some(want) => {
                let got = got.unwrap();
                assert_eq!(**got.shape(), *[ids.shape(), &[2]].concat(), "{case}");
                assert_eq!(got.to_vec::<i64>().unwrap(), want, "{case}");
            }
        }
    }
    assert!(misread > 0, "TensorFlow's wrong rows are among the cases");
}

#[test]
fn a_table_trained_with_mod_is_read_in_the_order_it_has() {
    for case in cases("mod_layout") {
        let (rows, want) = (sizes(&case), ints(&case["stored_row_of_id"]));
        let total = rows.iter().sum();
        let order = Permutation::of_mod(total, rows.len() as u64).unwrap();
        assert_eq!(order.rows(), want, "{case}");
        // The table in its parts, read by "mod", is the stored tensor, read through the order, in whatever parts.
        let ids: Vec<i64> = (0..total as i64).collect();
        let by_mod = LookupOptions::new().strategy(Strategy::Mod);
        let in_parts = embedding_lookup(&numbered(&rows), &ids, &by_mod).unwrap();
        let anew = numbered(&[total / 3, total - total / 3]);
        let through = embedding_lookup(&anew, &ids, &LookupOptions::new().through(&order)).unwrap();
        assert_eq!(in_parts, through, "{case}");
        assert_eq!(
            order.undo(&anew).unwrap().to_tensor().unwrap(),
            through,
            "{case}"
        );
    }
}

/// Equal, or both NaN, up to a part in a million: sums are made in another order here than in TensorFlow.
fn near(got: f32, want: f32, scale: f32) -> bool {
    got == want
        || got.is_nan() && want.is_nan()
        || (got - want).abs() <= 1e-6 * want.abs().max(scale)
}

#[test]
fn rows_are_clipped_as_tensorflow_does_it() {
    let mut exact = 0;
    for case in cases("embedding_max_norm") {
        let (shape, params) = array(&case["params"]);
        let params: Vec<f32> = params.into_iter().map(|x| x as f32).collect();
        let table = table(&sizes(&case), &shape[1..], |i| params[i]).unwrap();
        let bound = case["max_norm"].as_f64().unwrap();
        let ids = ids(&case["ids"]);
        let got = embedding_lookup(&table, &ids, &LookupOptions::new().max_norm(bound)).unwrap();
        let (got, want) = (got.to_vec::<f32>().unwrap(), floats(&case["result"]));
        assert_eq!(got.len(), want.len(), "{case}");
        for (got, want) in got.iter().zip(&want) {
            assert!(near(*got, *want, 0.0), "{got} for {want} in {case}");
        }
        // Where the norm is small its sum does not matter: what is left, a product and then a quotient, is exact.
        let width = shape[1..].iter().product::<u64>() as usize;
        for (row, &id) in ids.values().iter().enumerate() {
            let of_row = &params[id as usize * width..][..width];
            let norm = of_row
                .iter()
                .map(|&x| f64::from(x).powi(2))
                .sum::<f64>()
                .sqrt();
            if norm < bound * 0.999 {
                let bits = |v: &[f32]| {
                    v[row * width..][..width]
                        .iter()
                        .map(|x| x.to_bits())
                        .collect::<Vec<_>>()
                };
                assert_eq!(bits(&got), bits(&want), "{case}");
                exact += 1;
            }
        }
    }
    assert!(exact > 0, "some rows are shorter than their bound");
}

#[test]
fn lines_of_ids_are_combined_as_tensorflow_does_it() {
    for case in cases("embedding_lookup_sparse") {
        let (shape, params) = array(&case["params"]);
        let params: Vec<f32> = params.into_iter().map(|x| x as f32).collect();
        let table = table(&sizes(&case), &shape[1..], |i| params[i]).unwrap();
        let lines: Vec<u64> = case["indices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i[0].as_u64().unwrap())
            .collect();
        let batch = case["batch"].as_u64().unwrap();
        let mut ids = SparseIds::new(batch, lines, ints(&case["ids"])).unwrap();
        if !case["weights"].is_null() {
            ids = ids.with_weights(floats(&case["weights"])).unwrap();
        }
        let combiner: Combiner = serde_json::from_value(case["combiner"].clone()).unwrap();
        let mut options = LookupOptions::new();
        if let Some(bound) = case["max_norm"].as_f64() {
            options = options.max_norm(bound);
        }
        let got = if case["safe"] == true {
            safe_embedding_lookup_sparse(
                &table,
                &ids,
                combiner,
                case["default_id"].as_i64(),
                &options,
            )
        } else {
            assert!(case["default_id"].is_null(), "{case}");
            embedding_lookup_sparse(&table, &ids, combiner, &options)
        };
        let got = got.unwrap();
        assert_eq!(**got.shape(), *[&[batch], &shape[1..]].concat(), "{case}");
        let (got, want) = (got.to_vec::<f32>().unwrap(), floats(&case["result"]));
        // The plain function leaves out the lines behind the last that has ids; here they are zeros.
        let (got, behind) = got.split_at(want.len());
        assert!(behind.iter().all(|&x| x == 0.0), "{case}");
        for (got, want) in got.iter().zip(&want) {
            assert!(near(*got, *want, 1.0), "{got} for {want} in {case}");
        }
    }
}

#[test]
fn a_gradient_has_its_rows_of_each_part() {
    for case in cases("embedding_gradients") {
        let (shape, upstream) = array(&case["upstream"]);
        let table = table(&sizes(&case), &shape[1..], |_| 0f32).unwrap();
        let upstream: Vec<f32> = upstream.into_iter().map(|x| x as f32).collect();
        let upstream = Tensor::from_vec(&shape, upstream).unwrap();
        let got =
            lookup_gradients(&table, ids(&case["ids"]), &upstream, &LookupOptions::new()).unwrap();
        let want = case["grads"].as_array().unwrap();
        assert_eq!(got.len(), want.len(), "{case}");
        for (got, want) in got.iter().zip(want) {
            let dense_shape: Vec<u64> = got.dense_shape.to_vec();
            if want["kind"] == "IndexedSlices" {
                assert_eq!(got.indices, ints(&want["indices"]), "{case}");
                assert_eq!(
                    got.values.to_vec::<f32>().unwrap(),
                    floats(&want["values"]),
                    "{case}"
                );
                assert_eq!(
                    dense_shape,
                    array(&want["dense_shape"])
                        .1
                        .iter()
                        .map(|&n| n as u64)
                        .collect::<Vec<_>>()
                );
            } else {
                let dense = got.to_dense().unwrap();
                assert_eq!(
                    dense.to_vec::<f32>().unwrap(),
                    floats(&want["values"]),
                    "{case}"
                );
            }
        }
    }
}

#[test]
fn slices_are_those_of_numpy() {
    let mut unlike_numpy = 0;
    for case in cases("sharded_variable_getitem") {
        let v = numbered(&sizes(&case));
        let subscript = match case.get("index") {
            Some(index) => Index::At(index.as_i64().unwrap()),
            None => Index::slice(
                case["start"].as_i64(),
                case["stop"].as_i64(),
                case["step"].as_i64(),
            ),
        };
        let got = v.slice(&[subscript]);
        if case["error"].is_object() {
            assert!(got.is_err(), "{case}");
            continue;
        }
        // TensorFlow does not clamp bounds as NumPy does when the step is not 1 or -1; then the golden has both.
        unlike_numpy += usize::from(case.get("numpy").is_some());
        let want = case.get("numpy").unwrap_or(&case["rows"]);
        let got = got.unwrap();
        assert_eq!(**got.shape(), *array(want).0, "{case}");
        assert_eq!(got.to_vec::<f32>().unwrap(), floats(want), "{case}");
    }
    assert!(
        unlike_numpy > 0,
        "slices that TensorFlow gets wrong are among the cases"
    );
}

type Scatter = fn(&mut ShardedVariable, &Ids<'_>, &Tensor) -> Result<()>;

#[test]
fn scatters_and_sparse_reads_are_right_for_parts_of_any_size() {
    let (mut refused, mut reordered) = (0, 0);
    for case in cases("sharded_variable_scatter") {
        let (rows, ids) = (sizes(&case), ids(&case["indices"]));
        // TensorFlow has no scatter for parts of other sizes than its formula gives.
        let error = case["error"]["message"].as_str();
        let refuses = error.is_some_and(|e| e.contains("does not conform to \"div\""));
        refused += usize::from(refuses);
        let op = case["op"].as_str().unwrap();
        if op == "sparse_read" {
            let got = numbered(&rows).sparse_read(&ids);
            if error.is_some() && !refuses {
                assert!(got.is_err(), "{case}");
                continue;
            }
            let mut got = got.unwrap().to_vec::<f32>().unwrap();
            let asked: Vec<f32> = ids.values().iter().map(|&id| id as f32).collect();
            assert_eq!(got, asked, "{case}");
            if !refuses {
                // TensorFlow gives them part by part.
                let want = floats(&case["result"]);
                reordered += usize::from(got != want);
                let part = |&row: &f32| places(&rows)[row as usize][0];
                got.sort_by_key(part);
                assert_eq!(got, want, "{case}");
            }
            continue;
        }
        let mut v = table(&rows, &[], |i| i as f32 + 1.0).unwrap();
        let values = floats(&case["values"]);
        let tensor = Tensor::from_vec(&[values.len() as u64], values.clone()).unwrap();
        let (scatter, model): (Scatter, fn(f32, f32) -> f32) = match op {
            "scatter_add" => (|v, i, t| v.scatter_add(i, t), |a, b| a + b),
            "scatter_sub" => (|v, i, t| v.scatter_sub(i, t), |a, b| a - b),
            "scatter_mul" => (|v, i, t| v.scatter_mul(i, t), |a, b| a * b),
            "scatter_div" => (|v, i, t| v.scatter_div(i, t), |a, b| a / b),
            "scatter_max" => (|v, i, t| v.scatter_max(i, t), f32::max),
            "scatter_min" => (|v, i, t| v.scatter_min(i, t), f32::min),
            "scatter_update" => (|v, i, t| v.scatter_update(i, t), |_, b| b),
            other => panic!("an operation {other}"),
        };
        let done = scatter(&mut v, &ids, &tensor);
        if error.is_some() && !refuses {
            assert!(done.is_err(), "{case}");
            continue;
        }
        done.unwrap();
        let got = v.to_tensor().unwrap().to_vec::<f32>().unwrap();
        let mut want: Vec<f32> = (0..got.len()).map(|i| i as f32 + 1.0).collect();
        for (&id, &value) in ids.values().iter().zip(&values) {
            want[id as usize] = model(want[id as usize], value);
        }
        assert_eq!(got, want, "{case}");
        if !refuses {
            assert_eq!(got, floats(&case["result"]), "{case}");
        }
    }
    assert!(
        refused > 0 && reordered > 0,
        "what TensorFlow refuses or reorders is among the cases"
    );
}

#[test]
fn a_lookup_in_a_sharded_variable_is_right_however_it_is_run() {
    let mut wrong_in_function = 0;
    for case in cases("sharded_variable_lookup") {
        let got = embedding_lookup(
            &numbered(&sizes(&case)),
            ids(&case["ids"]),
            &LookupOptions::new(),
        )
        .unwrap();
        let got = got.to_vec::<f32>().unwrap();
        assert_eq!(got, floats(&case["eager"]), "{case}");
        // Inside `tf.function` TensorFlow takes the formula for the places, whatever the sizes are.
        wrong_in_function +=
            usize::from(case.get("function").is_none_or(|rows| floats(rows) != got));
    }
    assert!(
        wrong_in_function > 0,
        "rows that TensorFlow gets wrong are among the cases"
    );
}

#[test]
fn what_a_sharded_variable_is_made_of_and_assigned_is_checked() {
    let t = |shape: &[u64]| {
        let n = shape.iter().product::<u64>() as usize;
        Tensor::from_vec(shape, vec![0f32; n]).unwrap()
    };
    let build = |parts: Vec<Tensor>| ShardedVariable::from_parts("v", parts);
    let assign = |value: &Tensor| {
        build(vec![t(&[1, 2]), t(&[2, 2]), t(&[1, 2])])
            .unwrap()
            .assign(value)
    };
    for case in cases("sharded_variable_checks") {
        let done: Result<()> = match case["tag"].as_str().unwrap() {
            // These the compiler refuses: there is no list but one of tensors.
            "None" | "not a variable" | "has slice info" => continue,
            "empty list" => build(vec![]).map(drop),
            "tuple" => build(vec![t(&[1]), t(&[1])]).map(drop),
            "dtypes" => build(vec![t(&[1]), Tensor::from_vec(&[1], vec![0i32]).unwrap()]).map(drop),
            "inner shapes" => build(vec![t(&[5, 10]), t(&[5, 20])]).map(drop),
            "ranks" => build(vec![t(&[5, 10]), t(&[5])]).map(drop),
            "scalars" => build(vec![t(&[]), t(&[])]).map(drop),
            "zero rows" => build(vec![t(&[2, 2]), t(&[0, 2])]).map(drop),
            "assign of the right shape" => assign(&t(&[4, 2])),
            "assign too small" => assign(&t(&[3, 2])),
            "assign scalar" => assign(&t(&[])),
            // TensorFlow ignores what is too much; here nothing is assigned.
            "assign too big" | "assign wrong inner size" => {
                assert_eq!(case["result"], "ok", "{case}");
                assert!(assign(&t(&[5, 2])).is_err() && assign(&t(&[4, 3])).is_err());
                continue;
            }
            other => panic!("no test for {other}"),
        };
        assert_eq!(done.is_ok(), case["result"] == "ok", "{case}");
    }
}
