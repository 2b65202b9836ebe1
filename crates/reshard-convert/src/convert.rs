//! A conversion: its options, its checks, its work.

use crate::{
    Asked, ConvertError, ConvertReport, Finding, Ledger, MAX_FILES, NotHeld, Result,
    annotations::Fates,
    cast::is_number,
    checked::last_check,
    checks::{self, Checks},
    destination::{self, check_files, files_of_ranks},
    fit::{Fit, has_dialect},
    keys::Keys,
    ledger::Account,
    mapped::{Additions, Mapped},
    optimizer::Canonical,
    phase::Started,
    quantized,
    resume::{self, Journal, Resumed},
    rewrite::Rewrite,
    snapshot::Snapshot,
    source::{self, Source},
    target::{Target, Wanted},
};
use futures::future::join_all;
use reshard::{
    BackendVersion, Checkpoint, CommonForm, DType, Dialect, LocalGroup, Registry, SaveReport,
    ShardingPolicy, StateDict, Stores,
    map::Map,
    plan::TensorRef,
    policy::{MaxShardSize, files_per_task},
    storage::{PlaceKind, Progress, Store, Traffic},
    strategy::{Damage, Rest, SaveShardedStrategy, StrategyError, VerifyReport},
};
use reshard_optim::BucketLayout;
use serde_json::Value as Json;
use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

/// The maximal number of ranks of one conversion. So many ranks take about 100 MB of memory in addition to their pieces.
pub const MAX_RANKS: u32 = 4_096;

/// How many bytes all ranks together may hold while they write for each other: they are all in this process.
const EXCHANGES: u64 = 48 << 20;

/// Rounds of fewer bytes would take very long.
const LEAST_EXCHANGE: u64 = 1 << 20;

/// The maximal number of pieces into which one conversion cuts tensors, unless [`Convert::max_pieces`] sets another one. So many pieces take about
/// half a gigabyte of memory.
pub const MAX_PIECES: u64 = 200_000;

/// The deadline of a step is long, because all ranks run in one process: one rank may write for hours while the others wait.
const PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Rewrites a checkpoint at another place, in any format. Await the result, or set options on it first. [`reshard::blocking::run`] waits
/// for it without an executor.
///
/// # Cancellation
/// If you drop a conversion before its commit, nothing appears at the destination. Data that are already written stay beside
/// the destination until `reshard_manager::prune` removes them. A commit that has begun may still finish.
///
/// # Errors
/// [`ConvertError`]. Nothing appears at the destination then, with one exception: an error that comes after the commit
/// ([`ConvertError::Write`]).
pub fn convert(source: &Checkpoint, dst: impl AsRef<std::path::Path>) -> Convert<'_> {
    Convert {
        source,
        dst: reshard::place_text(dst),
        keys: Keys::default(),
        ranks: 1,
        max_pieces: MAX_PIECES,
        format: Wanted::ByName,
        settings: Vec::new(),
        drop_objects: false,
        lossless: false,
        skip_unread: false,
        keep_objects: false,
        dtype: None,
        max_shard_size: None,
        max_slices: None,
        max_files: MAX_FILES,
        policy: None,
        unflatten: false,
        canonical_optimizer: false,
        dialect: None,
        common_form: None,
        map: None,
        mapped: None,
        bucket_layout: None,
        overwrite: false,
        journal: None,
        verify: true,
        dry_run: false,
        checked: Progress::default(),
        progress: Progress::default(),
        registry: None,
        stores: None,
    }
}

/// A conversion with its options; made by [`convert`].
#[derive(Debug, derive_setters::Setters)]
#[setters(strip_option)]
#[must_use = "a conversion does nothing until it is awaited"]
pub struct Convert<'a> {
    #[setters(skip)]
    pub(crate) source: &'a Checkpoint,
    #[setters(skip)]
    pub(crate) dst: String,
    #[setters(skip)]
    pub(crate) keys: Keys<'a>,
    /// What a map makes of the source.
    #[setters(skip)]
    pub(crate) mapped: Option<Mapped>,
    #[setters(skip)]
    pub(crate) format: Wanted,
    #[setters(skip)]
    pub(crate) settings: Vec<(String, Json)>,
    #[setters(skip)]
    journal: Option<Journal>,
    #[setters(skip)]
    checked: Progress,
    #[setters(skip)]
    progress: Progress,
    /// The number of ranks. The default is 1, the maximum is [`MAX_RANKS`].
    pub(crate) ranks: u32,
    /// Into how many pieces the ranks may cut all tensors together. The default is [`MAX_PIECES`]. A tensor is cut into one
    /// piece per rank, but into no more than it has rows. What is not cut does not count. A million pieces take about 2 GB of
    /// memory.
    pub(crate) max_pieces: u64,
    /// Whether to leave out what the format has no place for: objects, common state, tensors of some element types. The report lists it. By
    /// default a conversion fails if there is anything.
    pub(crate) drop_objects: bool,
    /// Whether to fail if the copy would tell less than the source: if the [`Ledger`] has anything that is left out, or changed with a loss
    /// ([`LedgerEntry::is_loss`](crate::LedgerEntry::is_loss)). Nothing is written then. The default is no.
    pub(crate) lossless: bool,
    /// Whether to leave out items that are damaged, not understood, or beyond a limit, and to list them in the ledger with the reason. All
    /// items are checked before anything is written then. With a map, or with [`canonical_optimizer`](Self::canonical_optimizer), it has no effect,
    /// because one item of the copy may need several of the source. The default is to fail.
    pub(crate) skip_unread: bool,
    /// Whether to keep objects beside the tensors, in formats that have no place for them otherwise: it sets the setting `keep_objects` of the
    /// format, and fails if the format has no such setting. What still has no place is refused, or left out by
    /// [`drop_objects`](Self::drop_objects).
    pub(crate) keep_objects: bool,
    /// Casts tensors of floating-point numbers to this type. Others stay as they are: integers, complex numbers, float8 scales and packed
    /// floats. The report says what was lost.
    pub(crate) dtype: Option<DType>,
    /// Cuts larger tensors, and begins a new file when one is full. The limit is in bytes. It replaces a
    /// [`policy`](Self::policy).
    pub(crate) max_shard_size: Option<u64>,
    /// Writes tensors that Megatron Core has stored flattened as if they were not, as plain chunks. Its releases since 0.16 and PyTorch load
    /// them then. Without this such a source is refused, unless it is written in another format, which has no flattened tensors.
    pub(crate) unflatten: bool,
    /// Whether to rewrite the state of Megatron Core's distributed optimizer by parameter, in the form `fully_reshardable`, which can be
    /// loaded with any parallelism. [`reshard_optim::ShardingType`] has the forms that it can have in the source. Those
    /// [by bucket](reshard_optim::ShardingType::is_by_bucket) need a [`bucket_layout`](Self::bucket_layout). Flattened
    /// tensors are unflattened, too.
    pub(crate) canonical_optimizer: bool,
    /// Whose conventions the new checkpoint follows. The default is the dialect of the source if the format has it, or else PyTorch's, or else tensors only. In
    /// Megatron Core's dialect an object becomes a leaf of common state, at its path, unless its key is that of a cell of an array of objects; the files `common.pt` and
    /// `metadata.json` are written, without which Megatron Core loads nothing. A [`map`](Self::map) may [add](reshard::map::Additions) objects and common
    /// state. In PyTorch's dialect each leaf of common state becomes an item.
    pub(crate) dialect: Option<Dialect>,
    /// Where Megatron Core's common state goes. The default is the form of the source, or a file if the format stores no objects. A file is
    /// what its versions before 0.19 read.
    pub(crate) common_form: Option<CommonForm>,
    /// Carries tensors and objects over under other keys, shapes and types, as a map says. [`keys`](Self::keys) selects by the keys that the map
    /// makes. In PyTorch's dialect the new checkpoint has no nesting.
    pub(crate) map: Option<Map>,
    /// Which elements of the buckets of gradients belong to which parameter.
    pub(crate) bucket_layout: Option<BucketLayout>,
    /// The policy that decides which tensor, or which part of it, goes into which file; see [`reshard::Save::policy`].
    #[setters(into)]
    pub(crate) policy: Option<Arc<dyn ShardingPolicy>>,
    /// How many slices the policy's answer may have; see [`reshard::Save::max_slices`].
    pub(crate) max_slices: Option<usize>,
    /// How many data files all ranks together may write. The default is [`MAX_FILES`]. Ranks times files per rank is at most
    /// [`MAX_FILES_OF_RANKS`](crate::MAX_FILES_OF_RANKS) in any case.
    pub(crate) max_files: u64,
    /// Whether to replace a checkpoint at the destination; see [`reshard::Save::overwrite`].
    pub(crate) overwrite: bool,
    /// Whether to check the checksums of the source. The default is yes. Without this check, damage is carried over silently. Elements are
    /// checked while they are read, if the checkpoint has a CRC of the elements of each chunk (torch_dist, safetensors and torch_save, uncompressed and
    /// row-major, and little-endian tensor_bundle), and no tensor has more than a thousand chunks. Chunks that a map leaves out in part, or reads in
    /// short pieces, are read once more before the commit. All other sources are read once more before anything is written.
    pub(crate) verify: bool,
    /// The registry in which to find the format to write and the strategy of common state; by default the linked strategies.
    pub(crate) registry: Option<Registry>,
    /// The stores in which to look up the destination's URL; by default the linked stores.
    pub(crate) stores: Option<Stores>,
    /// Whether to make all checks that need no tensor data, and to write nothing. The report contains what would be written, and lists the checks that were not
    /// made. The default is a real conversion.
    pub(crate) dry_run: bool,
}

impl<'a> Convert<'a> {
    /// Keeps a journal of finished files in the folder of the attempt, so that another conversion can [`resume`](Self::resume) this one. `options` stands
    /// for all options that change what is written: only a conversion with the same text resumes it. Single files and files with a common prefix have no
    /// journal. The default is none.
    pub fn journal(mut self, options: impl Into<String>) -> Self {
        self.journal.get_or_insert_default().options = options.into();
        self
    }

    /// Continues the [`journal`](Self::journal) when so many bytes are finished. The default is 64 MiB, and after all files of a rank.
    pub fn journal_every(mut self, bytes: u64) -> Self {
        self.journal.get_or_insert_default().every = bytes;
        self
    }

    /// Goes on where a conversion of the same source with the same options was interrupted, if one has left a [`journal`](Self::journal). Files that are finished
    /// are not written again; [`ConvertReport::resumed`] counts them. Make sure that the other one no longer runs. The source is checked before anything is written, because what was checked
    /// on the way is not known. Finished files are read and compared with their checksums; one that has changed is written again. Casts of tensors in finished files are not counted again.
    pub fn resume(mut self, resume: bool) -> Self {
        self.journal.get_or_insert_default().looks = resume;
        self
    }

    /// Selects the keys to carry over. The default is all. Common state is always carried over.
    pub fn keys(mut self, chosen: impl Fn(&str) -> bool + Send + Sync + 'a) -> Self {
        self.keys.chosen = Some(Box::new(chosen));
        self
    }

    /// The format to write, by its name. The default is the linked format that would recognise a single file with the destination's
    /// name (`model.pt`), or else `torch_dist`.
    pub fn to(mut self, format: BackendVersion) -> Self {
        self.format = Wanted::Named(format);
        self
    }

    /// The format to write, with settings.
    pub fn strategy(mut self, strategy: impl Into<SaveShardedStrategy>) -> Self {
        self.format = Wanted::Strategy(strategy.into());
        self
    }

    /// Changes one of the settings of the format to write, by its name in configuration.
    pub fn setting(mut self, name: &str, value: impl Into<Json>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The number of files of each rank, in formats that have such a setting. The default is 1.
    pub fn files_per_rank(self, files: u32) -> Self {
        self.setting("files_per_rank", files)
    }

    /// Sets a callback that is called with the number of bytes just checked, from any thread.
    pub fn checked(mut self, f: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.checked = Progress::new(f);
        self
    }

    /// Sets a callback that is called with the number of bytes just written, from any thread.
    pub fn progress(mut self, f: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.progress = Progress::new(f);
        self
    }

    /// Uses a destination that is already open. Its URL is then only its name in messages.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.stores = Some(Stores::only(store));
        self
    }

    /// Makes all the checks, and reads the data that are held in memory: objects and common state. It writes nothing.
    ///
    /// # Errors
    /// Any problem with the source, the destination or the options, except problems that only [`Conversion::run`] can
    /// find.
    pub async fn prepare(mut self) -> Result<Conversion<'a>> {
        let start = Instant::now();
        // First the checks that read nothing, then those that only look at directories.
        if !(1..=MAX_RANKS).contains(&self.ranks) {
            return Err(ConvertError::Ranks(self.ranks));
        }
        let registry = match self.registry.take() {
            Some(registry) => registry,
            None => Registry::linked().map_err(ConvertError::Target)?,
        };
        let target = Target::of(&self, &registry)?;
        self.registry = Some(registry);
        if let Some(dialect) = self.dialect {
            has_dialect(&target, dialect)?;
        }
        check_files(self.ranks, target.files_per_rank())?;
        if let Some(dtype) = self.dtype.filter(|to| !is_number(*to)) {
            return Err(ConvertError::DType(dtype));
        }
        if let Some(policy) = self.policy.as_deref().filter(|_| self.max_shard_size.is_none())
            // The save reports a policy that panics.
            && let Ok(files) = files_per_task(policy)
        {
            files_of_ranks(self.ranks, files, Asked::ByPolicy)?;
        }
        if self.canonical_optimizer && self.keys.chosen.is_some() {
            return Err(ConvertError::KeysOfOptimizer);
        }
        if let Some(map) = &self.map {
            if self.canonical_optimizer {
                return Err(ConvertError::MapOfOptimizer);
            }
            self.mapped = Some(Mapped::of(self.source, map, &self.keys)?);
        }
        self.casts_no_quantized().await?;
        self.few_enough_pieces(source::cut_pieces(self.source, &self.keys, self.ranks))?;
        self.can_be_carried(&target)?;
        let stores = match self.stores.take() {
            Some(stores) => stores,
            None => Stores::linked().map_err(|e| ConvertError::Destination(e.into()))?,
        };
        destination::check(&self, target.place, &stores).await?;
        let snapshot = Snapshot::of(self.source).await;
        let checks = self.verified().await?;
        self.understood()?;
        let checks = Arc::new(checks.unwrap_or_default());
        let canonical = match &self.mapped {
            Some(mapped) => mapped.canonical(self.source, &checks)?,
            None if self.canonical_optimizer => {
                Canonical::of(self.source, self.bucket_layout.as_ref()).await?
            }
            None => Canonical::default(),
        };
        // A map has chosen already, by its own keys.
        let (keys, all) = (&self.keys, Keys::default());
        let keys = if self.mapped.is_some() { &all } else { keys };
        let fit = Fit::of(&self, &target, (keys, &canonical)).await?;
        let additions = match &self.mapped {
            Some(mapped) if fit.dialect == Dialect::Megatron => {
                mapped.additions(&self.keys).await?
            }
            _ => Additions::default(),
        };
        let phase = Started::now("read", self.source.url());
        let read = Source::read(self.source, keys, &canonical, (&fit, &checks), &additions).await;
        phase.done(&read.as_ref().map(|source| source.read));
        let source = read?;
        // What is carried over in its stored form.
        if let Some(what) = source.damage().filter(|_| self.verify) {
            return Err(self.unsound(Finding::Damaged, what));
        }
        self.few_enough_pieces(source.cut_pieces(self.ranks))?;
        source.has_places()?;
        let keeps_ties = self.ranks == 1 && !self.canonical_optimizer && target.has_ties();
        let kind = (&target, keeps_ties);
        let annotations = Fates::of(self.source, kind, (keys, &canonical, &fit));
        if !self.drop_objects {
            annotations.check_torchao()?;
        }
        let account = Account {
            setup: &self,
            source: &source,
            fates: &annotations,
        };
        let ledger = account.ledger();
        self.accepts(&ledger, &source, &target)?;
        let annotations = annotations.kept();
        let planner = Rewrite::of(self.source, keys, &canonical, &source, annotations);
        Ok(Conversion {
            setup: self,
            target,
            dropped: fit.dropped,
            ledger,
            source,
            planner,
            snapshot,
            stores,
            checking: start.elapsed(),
        })
    }

    /// Checks the source, except tensors that are checked while they are read, which it returns.
    async fn verified(&mut self) -> Result<Option<Checks>> {
        // Tensors are read in blocks, and a block is not a whole item with a checksum. So damage would be carried over
        // and get a new, correct checksum. Therefore elements are hashed while they are read, or the source is checked first.
        let mut checks = None;
        let skips = self.skip_unread && self.map.is_none() && !self.canonical_optimizer;
        if skips {
            let producer = self.source.producer();
            self.skip("damaged", producer.damaged);
            self.skip("not understood", producer.unknown);
        }
        if self.verify {
            let phase = Started::now("check", self.source.url());
            // Of a chunk that was written in part nobody knows the rest.
            let resumes = self.journal.as_ref().is_some_and(|j| j.looks);
            // The buckets of an optimizer are read in boxes of parameters.
            if !resumes && !self.dry_run && !self.canonical_optimizer && !skips {
                checks = checks::checks(self.source, |key| self.carries(key), &self.checked).await;
            }
            let elements = checks.is_none() && !self.dry_run;
            let verified = self.source.verify(elements, self.checked.clone()).await;
            let found = verified.map_err(ConvertError::Read);
            if let (true, Ok(found)) = (skips, &found) {
                self.skip_found(found);
            }
            let sound = found.and_then(|found| {
                self.sound(&found)?;
                Ok(Traffic::written(found.items, found.bytes, 0))
            });
            phase.done(&sound);
            sound?;
        }
        Ok(checks)
    }

    /// Leaves out chosen items about which something is wrong.
    fn skip(&mut self, is: &str, found: impl IntoIterator<Item = (String, String)>) {
        for (key, what) in found {
            if self.keys.has(&key) {
                let why = format!("{is}: {what}");
                self.keys.unread.insert(key, why.into());
            }
        }
    }

    /// Leaves out what a check has found, but for what could not be checked: it may be readable the next time.
    fn skip_found(&mut self, found: &VerifyReport) {
        for (is, listed, rest) in found.lists() {
            if is == "unchecked" {
                continue;
            }
            let listed = listed.iter();
            self.skip(
                is,
                listed.filter_map(|d| Some((d.key.clone()?, d.without_key()))),
            );
            let what = format!("one of {} findings that are not listed", rest.findings);
            self.skip(is, rest.keys.iter().map(|key| (key.clone(), what.clone())));
        }
    }

    /// Refuses a copy that would be empty though the source is not, and one that loses something if it may not.
    fn accepts(&self, ledger: &Ledger, source: &Source, target: &Target) -> Result<()> {
        let src = || self.source.url().into();
        if source.is_empty() && self.keys.chosen.is_some() {
            return Err(ConvertError::NothingChosen { src: src() });
        }
        if let (items @ 1.., 0) = ledger.state() {
            let ledger = ledger.to_string().replace('\n', "; ");
            return Err(ConvertError::NothingLeft {
                src: src(),
                items,
                ledger,
            });
        }
        let losses: Vec<_> = match self.lossless {
            true => ledger.losses().cloned().collect(),
            false => Vec::new(),
        };
        match losses.is_empty() {
            true => Ok(()),
            false => Err(ConvertError::Lossy {
                src: src(),
                format: target.key(),
                losses,
            }),
        }
    }

    /// Refuses more pieces than fit into memory. A small source can name many tensors.
    fn few_enough_pieces(&self, pieces: u64) -> Result<()> {
        if pieces <= self.max_pieces {
            return Ok(());
        }
        Err(ConvertError::TooManyPieces {
            pieces,
            max: self.max_pieces,
            ranks: self.ranks,
        })
    }

    /// Refuses a source that is not understood as a whole.
    fn can_be_carried(&self, target: &Target) -> Result<()> {
        let (src, format) = (self.source.url(), self.source.backend());
        let plain = self.unflatten
            || self.canonical_optimizer
            || self.mapped.is_some()
            || target.key().backend != format.backend;
        let mut tensors = self.source.metadata().tensors();
        let flattened = |t: &TensorRef<'_>| t.original_shape().is_some() && self.keys.has(t.key());
        if let (false, Some(t)) = (plain, tensors.find(flattened)) {
            return Err(ConvertError::Flattened {
                src: src.into(),
                key: t.key().into(),
            });
        }
        Ok(())
    }

    /// Refuses a chosen item whose description is not understood, or damaged: the copy would lack it without saying so.
    fn understood(&self) -> Result<()> {
        let producer = self.source.producer();
        // A map may need it, and does not know it.
        let chosen = |key: &str| self.mapped.is_some() || self.keys.has(key);
        if let Some((key, why)) = producer.unknown.into_iter().find(|(key, _)| chosen(key)) {
            return Err(ConvertError::Unknown { key, why });
        }
        // A check has told of damage more exactly.
        let mut damaged = producer.damaged.into_iter();
        damaged
            .find(|(key, _)| self.carries(key))
            .map_or(Ok(()), |(key, what)| {
                Err(self.unsound(Finding::Damaged, Damage::new(what).of_key(key)))
            })
    }

    fn unsound(&self, finding: Finding, what: Damage) -> ConvertError {
        let src = self.source.url().into();
        ConvertError::Unsound { src, finding, what }
    }

    /// Fails if the check found something about a chosen item or the whole checkpoint. Damage is reported first.
    fn sound(&self, found: &VerifyReport) -> Result<()> {
        let concerns = |d: &&Damage| d.key.as_ref().is_none_or(|key| self.carries(key));
        let kinds = [
            Finding::Damaged,
            Finding::Unchecked,
            Finding::NotUnderstood,
            Finding::NotRead,
        ];
        let worst = kinds.into_iter().zip(found.lists());
        let mut worst = worst.filter_map(|(is, (_, listed, rest))| {
            let listed = listed.iter().find(concerns).cloned();
            Some((is, listed.or_else(|| self.unlisted(rest))?))
        });
        match worst.next() {
            None => Ok(()),
            Some((finding, what)) => Err(self.unsound(finding, what)),
        }
    }

    /// Fails if a chosen tensor is cast whose elements mean nothing without a scale.
    async fn casts_no_quantized(&self) -> Result<()> {
        let casts = |key: &str, dtype| {
            let by_map = self
                .mapped
                .as_ref()
                .is_some_and(|mapped| mapped.cast.contains(key));
            by_map || (self.carries(key) && quantized::is_cast_to(self.dtype, dtype))
        };
        quantized::check(self.source, casts).await
    }

    /// Whether something of this item of the source is carried over.
    fn carries(&self, key: &str) -> bool {
        match &self.mapped {
            Some(mapped) => mapped.needs(key),
            None => self.keys.has(key),
        }
    }

    /// A finding about a chosen item or the whole checkpoint that the check has only counted.
    fn unlisted(&self, rest: &Rest) -> Option<Damage> {
        let key = rest.keys.iter().find(|key| self.carries(key));
        let what = || format!("one of {} findings that are not listed", rest.findings);
        (rest.whole || key.is_some()).then(|| Damage {
            key: key.cloned(),
            ..Damage::new(what())
        })
    }

    /// The checks of this conversion that need tensor data, or need to write.
    fn unmade_checks(&self) -> Vec<&'static str> {
        let resumes = self.journal.as_ref().is_some_and(|j| j.looks);
        let checks = [
            (self.verify, "the checksums of tensors"),
            (
                self.dtype.is_some() || self.mapped.is_some(),
                "the range and precision that casts lose",
            ),
            (
                self.overwrite,
                "whether the file system can exchange the old version for the new one in one step",
            ),
            (
                resumes,
                "which files an interrupted conversion has finished",
            ),
        ];
        let unmade = checks
            .into_iter()
            .filter(|(applies, _)| self.dry_run && *applies);
        unmade.map(|(_, check)| check).collect()
    }
}

/// A conversion that is checked, but has written nothing; made by [`Convert::prepare`].
#[derive(Debug)]
#[must_use = "nothing is written until it runs"]
pub struct Conversion<'a> {
    setup: Convert<'a>,
    target: Target,
    dropped: Vec<NotHeld>,
    ledger: Ledger,
    source: Source,
    planner: Rewrite,
    /// The source before its tensors were read.
    snapshot: Snapshot,
    stores: Stores,
    checking: Duration,
}

impl Conversion<'_> {
    /// The number of tensors to carry over.
    pub fn tensors(&self) -> u64 {
        self.source.tensors()
    }

    /// The number of objects to carry over.
    pub fn objects(&self) -> u64 {
        self.source.objects()
    }

    /// The format to write.
    pub fn format(&self) -> BackendVersion {
        self.target.key()
    }

    /// What of the source will be left out, because the format has no place for it.
    pub fn dropped(&self) -> &[NotHeld] {
        &self.dropped
    }

    /// What will become of each item of the source.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The number of bytes of elements and objects.
    pub fn bytes(&self) -> u64 {
        self.source.bytes()
    }

    /// Sets the callback of [`Convert::progress`].
    pub fn progress(mut self, f: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.setup.progress = Progress::new(f);
        self
    }

    /// Writes the destination.
    ///
    /// # Errors
    /// [`ConvertError::TooManyFiles`] because of [`Convert::max_shard_size`]; the errors of [`reshard::save`], also if a policy makes more files than [`Convert::max_files`].
    pub async fn run(self) -> Result<ConvertReport> {
        let setup = &self.setup;
        if let Some(max) = setup.max_shard_size {
            let least = self.bytes() / max.max(1);
            destination::few_enough(least, setup.max_files, Asked::BySize)?;
        }
        let start = Instant::now();
        let states = self.source.states(setup.ranks);
        let (saved, resumed) = self.save(&states.map_err(ConvertError::Read)?).await?;
        Ok(ConvertReport {
            format: self.format(),
            // A dry run casts nothing, so it can't count losses.
            casts: match setup.dry_run {
                true => Vec::new(),
                false => self.source.casts(),
            },
            unmade_checks: setup.unmade_checks(),
            tensors: self.tensors(),
            objects: self.objects(),
            took: self.checking + start.elapsed(),
            checking: self.checking,
            unread: setup.keys.unread.clone(),
            dropped: self.dropped,
            ledger: self.ledger,
            saved,
            resumed,
        })
    }

    /// Saves the states of all ranks. I/O threads read and write the bytes, so one task can drive all ranks.
    async fn save(&self, states: &[StateDict]) -> Result<(SaveReport, Resumed)> {
        let setup = &self.setup;
        // A dry run keeps no journal, but looks for one.
        let journal = setup.journal.as_ref();
        let journal = journal.filter(|j| !setup.dry_run || j.looks);
        let keeps = self.target.place == PlaceKind::Folder;
        let place = match journal.filter(|_| keeps) {
            None => None,
            Some(journal) => {
                let place = resume::place(setup.source, &setup.dst, &self.stores, journal).await;
                place.map_err(|e| ConvertError::Destination(e.into()))?
            }
        };
        let limit = setup
            .max_shard_size
            .map(|max| Arc::new(MaxShardSize::new(max)) as Arc<dyn ShardingPolicy>);
        let policy = limit.or_else(|| setup.policy.clone());
        let groups = LocalGroup::new(setup.ranks);
        let mut last = Some((self.source.watched(), self.snapshot.clone()));
        let saves = groups.iter().zip(states).map(|(group, state)| {
            let progress = setup.progress.clone();
            let mut save = self.source.save(state, &setup.dst);
            if let Some(policy) = &policy {
                save = save.boxed_policy(Arc::clone(policy));
            }
            if let Some(slices) = setup.max_slices {
                save = save.max_slices(slices);
            }
            if let Some(registry) = &setup.registry {
                save = save.registry(registry.clone());
            }
            // Once, by the first rank.
            let last = last.take();
            let save = save
                .before_commit(move || last_check(last))
                .group(group)
                .deadline(PATIENCE)
                .exchange_memory((EXCHANGES / u64::from(setup.ranks)).max(LEAST_EXCHANGE))
                .max_files(setup.max_files)
                .strategy(self.target.strategy.clone())
                .planner(self.planner.clone())
                .overwrite(setup.overwrite)
                .dry_run(setup.dry_run)
                .stores(self.stores.clone())
                .progress(move |n| progress.add(n));
            let save = match &place {
                Some(place) => save.store(Arc::new(place.clone())),
                None => save,
            };
            save.into_future()
        });
        let saved: Result<Vec<SaveReport>, _> = join_all(saves).await.into_iter().collect();
        // Only the coordinator's report describes the whole save.
        let first = saved.map_err(ConvertError::Write)?.into_iter().next();
        let first = first.ok_or_else(|| {
            ConvertError::Destination(StrategyError::Internal("no rank saved anything".into()))
        })?;
        Ok((
            first,
            place.map_or_else(Resumed::default, |place| place.resumed()),
        ))
    }
}

impl<'a> IntoFuture for Convert<'a> {
    type Output = Result<ConvertReport>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { self.prepare().await?.run().await })
    }
}
