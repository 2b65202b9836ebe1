//! Stores and transactions around others pass on what they do not change.

/// In an `impl` of [`Store`](crate::Store) or [`Transaction`](crate::Transaction), passes on these methods to the store or transaction in
/// a field. With `#[deny(clippy::missing_trait_methods)]` on the `impl`, no default slips past the inner one.
///
/// `again` is for `pinned`, `resolved` and `of_kind`: the store that the inner one returns is wrapped, too, in a clone of the outer one.
///
/// ```
/// use async_trait::async_trait;
/// use reshard_storage::{*, Result};
/// use std::sync::Arc;
///
/// /// A store in which nobody removes anything.
/// #[derive(Clone, Debug)]
/// struct Kept(Arc<dyn Store>);
///
/// #[async_trait]
/// #[deny(clippy::missing_trait_methods)]
/// impl Store for Kept {
///     forward! { 0: url identity hints read read_all read_ranges read_into list head tags local_file links begin begin_dry_run join
///         recovery }
///     // What the inner store gives is kept, too.
///     forward! { again 0: pinned resolved of_kind }
///
///     async fn remove(&self, _: &[Name]) -> Result<()> {
///         Err(StorageError::invalid("nothing is removed here"))
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:tt: $($method:ident)*) => {
        $($crate::forward! { @$method $inner })*
    };
    (again $inner:tt: $($method:ident)*) => {
        $($crate::forward! { @again $method $inner })*
    };
    (@again of_kind $inner:tt) => {
        fn of_kind(&self, kind: $crate::PlaceKind) -> ::std::option::Option<::std::sync::Arc<dyn $crate::Store>> {
            let again = |inner| ::std::sync::Arc::new(Self { $inner: inner, ..::std::clone::Clone::clone(self) }) as _;
            self.$inner.of_kind(kind).map(again)
        }
    };
    (@again $method:ident $inner:tt) => {
        fn $method<'me, 'future>(
            &'me self
        ) -> $crate::__Answer<'future, ::std::option::Option<::std::sync::Arc<dyn $crate::Store>>>
        where
            'me: 'future,
            Self: 'future,
        {
            ::std::boxed::Box::pin(async move {
                let again = |inner| ::std::sync::Arc::new(Self { $inner: inner, ..::std::clone::Clone::clone(self) }) as _;
                ::std::result::Result::Ok(self.$inner.$method().await?.map(again))
            })
        }
    };
    (@url $inner:tt) => {
        $crate::forward! { sync $inner.url -> ::std::string::String }
    };
    (@identity $inner:tt) => {
        $crate::forward! { sync $inner.identity -> ::std::string::String }
    };
    (@hints $inner:tt) => {
        $crate::forward! { sync $inner.hints -> $crate::Hints }
    };
    (@of_kind $inner:tt) => {
        fn of_kind(&self, kind: $crate::PlaceKind) -> ::std::option::Option<::std::sync::Arc<dyn $crate::Store>> {
            self.$inner.of_kind(kind)
        }
    };
    (@recovery $inner:tt) => {
        $crate::forward! { sync $inner.recovery -> ::std::option::Option<&dyn $crate::Recovery> }
    };
    (@place $inner:tt) => {
        $crate::forward! { sync $inner.place -> ::std::option::Option<::std::string::String> }
    };
    (@folder $inner:tt) => {
        $crate::forward! { sync $inner.folder -> ::std::option::Option<$crate::Name> }
    };
    (@read $inner:tt) => {
        $crate::forward! { async $inner.read<'n>(name: &'n $crate::Name, range: ::std::ops::Range<u64>) -> $crate::__Bytes }
    };
    (@read_all $inner:tt) => {
        $crate::forward! { async $inner.read_all<'n>(name: &'n $crate::Name, max: u64) -> ::std::option::Option<$crate::__Bytes> }
    };
    (@read_ranges $inner:tt) => {
        $crate::forward! {
            async $inner.read_ranges<>(reads: ::std::vec::Vec<($crate::Name, ::std::ops::Range<u64>)>)
                -> (::std::vec::Vec<$crate::__Bytes>, $crate::Traffic)
        }
    };
    (@read_into $inner:tt) => {
        $crate::forward! {
            async $inner.read_into<>(reads: ::std::vec::Vec<$crate::RecordRead>, progress: $crate::Progress) -> $crate::Traffic
        }
    };
    (@list $inner:tt) => {
        $crate::forward! {
            async $inner.list<'n>(below: ::std::option::Option<&'n $crate::Name>, depth: $crate::Depth) -> $crate::Listing
        }
    };
    (@head $inner:tt) => {
        $crate::forward! { async $inner.head<'n>(name: &'n $crate::Name) -> ::std::option::Option<$crate::Head> }
    };
    (@remove $inner:tt) => {
        $crate::forward! { async $inner.remove<'n>(names: &'n [$crate::Name]) -> () }
    };
    (@pinned $inner:tt) => {
        $crate::forward! { async $inner.pinned<>() -> ::std::option::Option<::std::sync::Arc<dyn $crate::Store>> }
    };
    (@resolved $inner:tt) => {
        $crate::forward! { async $inner.resolved<>() -> ::std::option::Option<::std::sync::Arc<dyn $crate::Store>> }
    };
    (@tags $inner:tt) => {
        $crate::forward! { async $inner.tags<'n>(name: &'n $crate::Name) -> ::std::option::Option<$crate::Tags> }
    };
    (@local_file $inner:tt) => {
        $crate::forward! { async $inner.local_file<'n>(name: &'n $crate::Name) -> ::std::option::Option<::std::fs::File> }
    };
    (@links $inner:tt) => {
        $crate::forward! { async $inner.links<>() -> ::std::vec::Vec<$crate::Link> }
    };
    (@begin $inner:tt) => {
        $crate::forward! {
            async $inner.begin<'n>(attempt: &'n str, if_exists: $crate::IfExists) -> ::std::sync::Arc<dyn $crate::Transaction>
        }
    };
    (@begin_dry_run $inner:tt) => {
        $crate::forward! {
            async $inner.begin_dry_run<'n>(attempt: &'n str, if_exists: $crate::IfExists) -> ::std::sync::Arc<dyn $crate::Transaction>
        }
    };
    (@join $inner:tt) => {
        $crate::forward! {
            async $inner.join<'n, 'p>(attempt: &'n str, place: ::std::option::Option<&'p str>) -> ::std::sync::Arc<dyn $crate::Transaction>
        }
    };
    (@write $inner:tt) => {
        $crate::forward! {
            async $inner.write<>(files: ::std::vec::Vec<$crate::FileBody>, durability: $crate::Durability, progress: $crate::Progress)
                -> ::std::vec::Vec<$crate::Written>
        }
    };
    (@commit $inner:tt) => {
        $crate::forward! {
            async $inner.commit<'n>(
                record: ::std::option::Option<($crate::Name, $crate::__Bytes)>, files: &'n [$crate::Entry],
                durability: $crate::Durability
            ) -> ()
        }
    };
    (@written $inner:tt) => {
        $crate::forward! { async $inner.written<>() -> ::std::vec::Vec<$crate::Entry> }
    };
    (@rollback $inner:tt) => {
        $crate::forward! { async $inner.rollback<>() -> () }
    };
    (sync $inner:tt.$method:ident -> $out:ty) => {
        fn $method(&self) -> $out {
            self.$inner.$method()
        }
    };
    // As `async_trait` writes it. The future is the inner one, and not one more around it.
    (async $inner:tt.$method:ident<$($life:lifetime),*>($($arg:ident: $type:ty),*) -> $out:ty) => {
        fn $method<'me $(, $life)*, 'future>(
            &'me self $(, $arg: $type)*
        ) -> $crate::__Answer<'future, $out>
        where
            'me: 'future,
            $($life: 'future,)*
            Self: 'future,
        {
            self.$inner.$method($($arg),*)
        }
    };
}
