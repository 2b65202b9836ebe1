//! A crate as its modules, and what each of them defines, imports and hands on.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    slice,
};

use anyhow::{Context as _, Result, bail};
use syn::{
    Attribute, Item, ItemMod, Meta, MetaList, UseTree, Visibility, punctuated::Punctuated,
    token::Comma,
};

/// The files and modules of one target. The first of each is its root.
#[derive(Default)]
pub(super) struct Crate {
    pub(super) files: Vec<File>,
    pub(super) modules: Vec<Module>,
}

pub(super) struct File {
    pub(super) path: PathBuf,
    /// Without what is compiled for tests alone.
    pub(super) items: Vec<Item>,
    pub(super) module: usize,
}

/// A module, in a file of its own or in braces.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) file: usize,
    pub(super) parent: Option<usize>,
    pub(super) children: BTreeMap<String, usize>,
    defined: BTreeMap<String, Kind>,
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    is_public: bool,
    /// Names that it defines for everybody, and paths that it hands on to everybody.
    public: Vec<String>,
    handed_on: Vec<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Function,
    /// A type, a trait, a constant, a macro.
    Other,
}

/// An item, by the file that defines it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) file: usize,
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// A file's text; `None` if there is no such file.
pub(super) fn text(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Where a module says that its file lies: `#[path = ".."]`.
fn said_path(module: &ItemMod) -> Option<String> {
    let said = module
        .attrs
        .iter()
        .find(|attr| attr.path().is_ident("path"))?
        .meta
        .require_name_value()
        .ok()?;
    match &said.value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(path),
            ..
        }) => Some(path.value()),
        _ => None,
    }
}

impl Crate {
    pub(super) fn read(
        path: &Path,
        read: &dyn Fn(&Path) -> Result<Option<String>>,
    ) -> Result<Self> {
        let mut whole = Self::default();
        let text = read(path)?.with_context(|| format!("{} is not there", path.display()))?;
        let folder = path.parent().unwrap_or(path);
        whole.add_file(path, &text, None, folder, read)?;
        Ok(whole)
    }

    fn add_file(
        &mut self,
        path: &Path,
        text: &str,
        parent: Option<usize>,
        folder: &Path,
        read: &dyn Fn(&Path) -> Result<Option<String>>,
    ) -> Result<usize> {
        let parsed =
            syn::parse_file(text).with_context(|| format!("{} is no Rust", path.display()))?;
        let (file, module) = (self.files.len(), self.modules.len());
        let items: Vec<Item> = parsed
            .items
            .into_iter()
            .filter(|item| !is_for_tests(attributes(item)))
            .collect();
        self.files.push(File {
            path: path.into(),
            items: Vec::new(),
            module,
        });
        self.add_module(file, parent, &items, folder, read)?;
        self.files[file].items = items;
        Ok(module)
    }

    fn add_module(
        &mut self,
        file: usize,
        parent: Option<usize>,
        items: &[Item],
        folder: &Path,
        read: &dyn Fn(&Path) -> Result<Option<String>>,
    ) -> Result<usize> {
        // The module gets its number before its children do, because they name it as their parent.
        let module = self.modules.len();
        self.modules.push(Module {
            file,
            parent,
            children: BTreeMap::new(),
            defined: BTreeMap::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            is_public: false,
            public: Vec::new(),
            handed_on: Vec::new(),
        });
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            match item {
                Item::Mod(inner) => {
                    let child = self.add_child(file, module, inner, folder, read)?;
                    self.modules[child].is_public = is_public(&inner.vis);
                    self.modules[module]
                        .children
                        .insert(inner.ident.to_string(), child);
                }
                // What is handed on is kept in addition to the import, since others may see it from outside.
                Item::Use(item) => {
                    for import in imports(&item.tree) {
                        if is_public(&item.vis) {
                            self.modules[module].handed_on.push(import.path.clone());
                        }
                        self.modules[module].import(import);
                    }
                }
                item => {
                    let Some((name, kind, visibility)) = name(item) else {
                        continue;
                    };
                    if visibility.is_some_and(is_public) {
                        self.modules[module].public.push(name.clone());
                    }
                    self.modules[module].defined.insert(name, kind);
                }
            }
        }
        Ok(module)
    }

    fn add_child(
        &mut self,
        file: usize,
        parent: usize,
        inner: &ItemMod,
        folder: &Path,
        read: &dyn Fn(&Path) -> Result<Option<String>>,
    ) -> Result<usize> {
        let name = inner.ident.to_string();
        let below = folder.join(&name);
        if let Some((_, items)) = &inner.content {
            return self.add_module(file, Some(parent), items, &below, read);
        }
        // A path in an attribute begins at the folder of the file, whatever the module is called.
        let path = match said_path(inner) {
            Some(said) => self.files[file].path.with_file_name(said),
            None => folder.join(format!("{name}.rs")),
        };
        let Some(text) = read(&path)? else {
            bail!(
                "{} is not there; modules lie beside the folder that has their name",
                path.display()
            );
        };
        self.add_file(&path, &text, Some(parent), &below, read)
    }

    /// What a path of a module leads to; `None` for a module, and for what other crates define.
    pub(super) fn item_of(&self, module: usize, path: &[String]) -> Option<Found> {
        self.resolve(module, path, true, &mut BTreeSet::new())
    }

    /// `from_here`: the first name may be `crate`, `self` or `super`, and may be a name that the module imports for itself.
    fn resolve(
        &self,
        module: usize,
        path: &[String],
        from_here: bool,
        seen: &mut BTreeSet<(usize, String)>,
    ) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        if from_here {
            match first.as_str() {
                "crate" => return self.resolve(0, rest, true, seen),
                "self" => return self.resolve(module, rest, true, seen),
                "super" => return self.resolve(self.modules[module].parent?, rest, true, seen),
                _ => {}
            }
        }
        let here = &self.modules[module];
        if let Some(child) = here.children.get(first) {
            return self.resolve(*child, rest, false, seen);
        }
        if let Some(kind) = here.defined.get(first) {
            return Some(Found {
                file: here.file,
                name: first.clone(),
                kind: *kind,
            });
        }
        // `use serde_json::json` may stand beside a module's own `json`, and modules may import each other's names by `*`: each name
        // is followed once.
        if !seen.insert((module, first.clone())) {
            return None;
        }
        if let Some(import) = here.imports.get(first) {
            let whole: Vec<String> = import.iter().chain(rest).cloned().collect();
            return self.resolve(module, &whole, true, seen);
        }
        here.globs.iter().find_map(|glob| {
            let whole: Vec<String> = glob.iter().chain(path).cloned().collect();
            self.resolve(module, &whole, true, seen)
        })
    }

    /// What the crate hands on to everybody, from its root or from public modules.
    pub(super) fn face(&self) -> BTreeSet<Found> {
        let mut face = BTreeSet::new();
        let mut public = vec![0];
        while let Some(number) = public.pop() {
            let module = &self.modules[number];
            public.extend(
                module
                    .children
                    .values()
                    .filter(|child| self.modules[**child].is_public),
            );
            face.extend(
                module
                    .handed_on
                    .iter()
                    .filter_map(|path| self.item_of(number, path)),
            );
            face.extend(
                module
                    .public
                    .iter()
                    .filter_map(|name| self.item_of(number, slice::from_ref(name))),
            );
        }
        face
    }

    /// Whether a file's module lies below another file's.
    pub(super) fn is_below(&self, file: usize, above: usize) -> bool {
        let (mut module, above) = (self.files[file].module, self.files[above].module);
        while let Some(parent) = self.modules[module].parent {
            if parent == above {
                return true;
            }
            module = parent;
        }
        false
    }
}

impl Module {
    fn import(&mut self, import: Import) {
        match import.name {
            None => self.globs.push(import.path),
            // `pub(crate) use m;` of a macro that is defined here, or the name of a crate.
            Some(name) if import.path == [name.as_str()] => {}
            Some(name) => drop(self.imports.insert(name, import.path)),
        }
    }
}

/// One name of a `use`; none for `*`.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) name: Option<String>,
    pub(super) path: Vec<String>,
}

pub(super) fn imports(tree: &UseTree) -> Vec<Import> {
    let mut all = Vec::new();
    collect(tree, &mut Vec::new(), &mut all);
    all
}

fn collect(tree: &UseTree, path: &mut Vec<String>, all: &mut Vec<Import>) {
    let mut add = |name: Option<String>, last: Option<String>| {
        let mut path = path.clone();
        path.extend(last.filter(|last| last != "self" || path.is_empty()));
        let name = name.map(|name| {
            if name == "self" {
                path.last().cloned().unwrap_or(name)
            } else {
                name
            }
        });
        all.push(Import { name, path });
    };
    match tree {
        UseTree::Name(name) => add(Some(name.ident.to_string()), Some(name.ident.to_string())),
        UseTree::Rename(name) => add(Some(name.rename.to_string()), Some(name.ident.to_string())),
        UseTree::Glob(_) => add(None, None),
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            collect(&inner.tree, path, all);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, path, all)),
    }
}

/// Whether it is compiled for tests alone.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    let condition = |attribute: &Attribute| match attribute.path().is_ident("cfg") {
        true => attribute.parse_args::<Meta>().ok(),
        false => None,
    };
    !attributes
        .iter()
        .filter_map(condition)
        .all(|condition| holds_without_tests(&condition))
}

/// Whether some build that is no test meets a condition.
fn holds_without_tests(condition: &Meta) -> bool {
    let all = |list: &MetaList| {
        let all = list.parse_args_with(Punctuated::<Meta, Comma>::parse_terminated);
        all.map(|all| all.into_iter().collect::<Vec<_>>())
            .unwrap_or_default()
    };
    match condition {
        Meta::Path(name) => !name.is_ident("test") && !name.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => all(list).iter().all(holds_without_tests),
        Meta::List(list) if list.path.is_ident("any") => all(list).iter().any(holds_without_tests),
        _ => true,
    }
}

/// Whether others can take from here what is imported.
pub(super) fn is_handed_on(visibility: &Visibility) -> bool {
    !matches!(visibility, Visibility::Inherited)
}

pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

fn name(item: &Item) -> Option<(String, Kind, Option<&Visibility>)> {
    let (ident, visibility) = match item {
        Item::Const(i) => (&i.ident, Some(&i.vis)),
        Item::Enum(i) => (&i.ident, Some(&i.vis)),
        Item::Fn(i) => (&i.sig.ident, Some(&i.vis)),
        Item::Static(i) => (&i.ident, Some(&i.vis)),
        Item::Struct(i) => (&i.ident, Some(&i.vis)),
        Item::Trait(i) => (&i.ident, Some(&i.vis)),
        Item::Type(i) => (&i.ident, Some(&i.vis)),
        Item::Union(i) => (&i.ident, Some(&i.vis)),
        Item::Macro(i) => (i.ident.as_ref()?, None),
        _ => return None,
    };
    let kind = if matches!(item, Item::Fn(_)) {
        Kind::Function
    } else {
        Kind::Other
    };
    Some((ident.to_string(), kind, visibility))
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}
