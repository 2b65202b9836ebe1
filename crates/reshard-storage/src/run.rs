use crate::{
    Result,
    pool::{self, Priority},
};

/// Runs tasks that compute or block, several at a time, on the I/O threads of the process. So the threads of the executor stay
/// free. The values have the order of the tasks. If the future is dropped, tasks that have not begun never run.
///
/// # Errors
/// [`StorageError::Panicked`](crate::StorageError::Panicked) when a task panics.
///
/// ```
/// let squares = reshard_storage::run_blocking((1..4).map(|n| move || n * n));
/// assert_eq!(reshard_storage::wait(squares).unwrap(), [1, 4, 9]);
/// ```
pub async fn run_blocking<T, F>(tasks: impl IntoIterator<Item = F>) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let tasks: Vec<F> = tasks.into_iter().collect();
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let values = pool::run(|batch| {
        for task in tasks {
            batch.spawn(Priority::Main, move |_| Ok(Some(task())));
        }
        Ok(None)
    });
    Ok(values.await?.into_iter().flatten().collect())
}
