//! A client like `InMemory` but for what a test says of it.

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use reshard_object_store::object_store;
use std::{fmt, sync::Arc};

/// A listing gives so many objects in one answer.
const PAGE: usize = 1_000;

/// In what it differs.
#[async_trait]
pub(crate) trait Differs: fmt::Debug + Send + Sync + 'static {
    fn inner(&self) -> &InMemory;

    async fn put(&self, to: &Path, bytes: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner().put_opts(to, bytes, options).await
    }

    async fn upload(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner().put_multipart_opts(to, options).await
    }

    async fn get(&self, of: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner().get_opts(of, options).await
    }

    async fn copy(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner().copy_opts(from, to, options).await
    }

    fn remove(
        self: Arc<Self>,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner().delete_stream(paths)
    }

    /// A listing has another answer.
    fn page(&self) {}

    /// What a listing says of an object.
    fn listed(&self, meta: ObjectMeta) -> ObjectMeta {
        meta
    }
}

#[derive(Debug)]
pub(crate) struct Service<D>(Arc<D>);

impl<D: Differs> Service<D> {
    pub(crate) fn client(differs: D) -> Arc<dyn ObjectStore> {
        Arc::new(Self(Arc::new(differs)))
    }
}

impl<D> fmt::Display for Service<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a client of a test")
    }
}

#[async_trait]
impl<D: Differs> ObjectStore for Service<D> {
    async fn put_opts(
        &self,
        to: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.0.put(to, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.upload(to, options).await
    }

    async fn get_opts(&self, of: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get(of, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        Arc::clone(&self.0).remove(paths)
    }

    fn list(&self, below: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (me, all) = (Arc::clone(&self.0), self.0.inner().list(below));
        me.page();
        let listed = all.enumerate().map(move |(n, meta)| {
            if n > 0 && n % PAGE == 0 {
                me.page();
            }
            meta.map(|meta| me.listed(meta))
        });
        listed.boxed()
    }

    async fn list_with_delimiter(&self, below: Option<&Path>) -> Result<ListResult> {
        let mut all = self.0.inner().list_with_delimiter(below).await?;
        let pages = all.objects.len() + all.common_prefixes.len();
        (0..pages.div_ceil(PAGE).max(1)).for_each(|_| self.0.page());
        let objects = all.objects.into_iter();
        all.objects = objects.map(|meta| self.0.listed(meta)).collect();
        Ok(all)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy(from, to, options).await
    }
}
