//! Which file names what of which other file.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Item, ItemMod, ItemUse, Macro,
    visit::{self, Visit},
};

use super::module::{Crate, Found, Kind, attributes, imports, is_for_tests, is_handed_on};

/// From a file to another one, and the names that the first takes.
pub(super) type Needs = BTreeMap<(usize, usize), BTreeSet<String>>;

pub(super) fn of(whole: &Crate) -> Needs {
    let mut needs = Needs::new();
    let face = whole.face();
    for (number, file) in whole.files.iter().enumerate() {
        let (face, needs, local) = (&face, &mut needs, BTreeMap::new());
        let mut reader = Reader {
            whole,
            face,
            file: number,
            module: file.module,
            local,
            needs,
        };
        file.items.iter().for_each(|item| reader.visit_item(item));
    }
    needs
}

struct Reader<'c> {
    whole: &'c Crate,
    face: &'c BTreeSet<Found>,
    file: usize,
    /// Where names are looked up: the file's module, or one in braces.
    module: usize,
    /// What functions of the file have imported for themselves, by its name there.
    local: BTreeMap<String, Vec<String>>,
    needs: &'c mut Needs,
}

impl Reader<'_> {
    /// Notes the item that a path leads to, if that is a need.
    fn name(&mut self, path: &[String]) {
        let Some(found) = self.target(path) else {
            return;
        };
        let is_word = found.kind == Kind::Other && self.face.contains(&found);
        let is_call_below =
            found.kind == Kind::Function && self.whole.is_below(found.file, self.file);
        if !is_word && !is_call_below {
            self.needs
                .entry((self.file, found.file))
                .or_default()
                .insert(found.name);
        }
    }

    /// The item of another file that a path leads to.
    fn target(&self, path: &[String]) -> Option<Found> {
        let found = self.whole.item_of(self.module, path).or_else(|| {
            let (first, rest) = path.split_first()?;
            let imported = self.local.get(first)?;
            self.whole
                .item_of(self.module, &[&imported[..], rest].concat())
        });
        found.filter(|found| found.file != self.file)
    }

    /// Paths in what a macro is given, as far as they can be told from tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        // Colons behind the last name; and whether the name is a field or a method.
        let (mut colons, mut of_value) = (0, false);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.name(&std::mem::take(&mut path));
                    }
                    if !of_value {
                        path.push(ident.to_string());
                    }
                    (colons, of_value) = (0, false);
                }
                TokenTree::Punct(sign) if sign.as_char() == ':' => colons += 1,
                other => {
                    self.name(&std::mem::take(&mut path));
                    of_value = matches!(&other, TokenTree::Punct(sign) if sign.as_char() == '.');
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.name(&path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let inner = self.whole.modules[self.module]
            .children
            .get(&item.ident.to_string());
        // A file of its own is read as such.
        if let (Some((_, items)), Some(inner)) = (&item.content, inner) {
            let outer = std::mem::replace(&mut self.module, *inner);
            items.iter().for_each(|item| self.visit_item(item));
            self.module = outer;
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for import in imports(&item.tree) {
            let Some(name) = import.name else { continue };
            self.local.insert(name, import.path.clone());
            let Some(found) = self.target(&import.path) else {
                continue;
            };
            if !(is_handed_on(&item.vis) && self.whole.is_below(found.file, self.file)) {
                self.name(&import.path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        if path.leading_colon.is_none() {
            self.name(&names);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}
