//! Counts the structure of the crates, test code left out, from the parsed sources.
//!
//! A file depends on another one if it names an item that the other file defines. Re-exports are
//! followed to the file that defines the item, and a `pub use` is no dependency. Nor is the use of a
//! module around the file: `store/redis.rs` may use what `store.rs` defines. Paths inside macro calls,
//! and calls of methods, are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, FnArg, ImplItem, Item, Pat, Signature, Type, UseTree, Visibility};

/// One file of `src` without its test code.
struct Source {
    /// Its path below `src`: `store/redis.rs`.
    name: String,
    /// Its module, from the crate's root: `["store", "redis"]`.
    module: Vec<String>,
    items: Vec<Item>,
    /// Lines that are not blank.
    lines: usize,
}

/// What a module makes known under a name.
enum Known {
    Defined,
    Imported(Vec<String>),
}

#[derive(Default)]
struct Module {
    file: usize,
    names: BTreeMap<String, Known>,
    globs: Vec<Vec<String>>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) files: usize,
    pub(super) production_lines: usize,
    pub(super) public_items: usize,
    pub(super) functions: usize,
    pub(super) tuple_parameters: Vec<String>,
    pub(super) ambiguous_types: BTreeMap<String, usize>,
    pub(super) circles: Vec<Vec<String>>,
    pub(super) lines_per_function: Vec<usize>,
}

impl Counts {
    /// The length that 95 of 100 functions do not exceed, lines.
    pub(super) fn p95(&self) -> usize {
        let at = self.lines_per_function.len() * 95 / 100;
        self.lines_per_function.get(at).copied().unwrap_or(0)
    }

    fn count_functions(&mut self, source: &Source) {
        let mut visitor = Functions {
            file: &source.name,
            in_trait_impl: false,
            counts: self,
        };
        for item in &source.items {
            visitor.visit_item(item);
        }
    }

    fn add_type(&mut self, name: &syn::Ident) {
        *self.ambiguous_types.entry(name.to_string()).or_default() += 1;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: usize = self.ambiguous_types.values().sum();
        writeln!(f, "{:>6} files", self.files)?;
        writeln!(
            f,
            "{:>6} lines, blank ones and tests left out",
            self.production_lines
        )?;
        writeln!(f, "{:>6} public items", self.public_items)?;
        writeln!(
            f,
            "{:>6} functions, p95 {} lines",
            self.functions,
            self.p95()
        )?;
        writeln!(
            f,
            "{:>6} functions with a tuple parameter, trait impls left out",
            self.tuple_parameters.len()
        )?;
        writeln!(
            f,
            "{:>6} type names for more than one type ({types} types)",
            self.ambiguous_types.len()
        )?;
        writeln!(
            f,
            "{:>6} circles of files within a room",
            self.circles.len()
        )?;
        for circle in &self.circles {
            writeln!(f, "       {} files: {}", circle.len(), circle.join(" "))?;
        }
        Ok(())
    }
}

/// Reads and counts these folders of sources, each of a crate.
pub(super) fn count(root: &Path, folders: &[String]) -> Counts {
    let mut counts = Counts::default();
    for folder in folders {
        let sources = sources(&root.join(folder));
        counts.files += sources.len();
        counts.production_lines += sources.iter().map(|source| source.lines).sum::<usize>();
        for source in &sources {
            counts.count_functions(source);
        }
        counts.circles.extend(circles(&sources));
    }
    counts.ambiguous_types.retain(|_, count| *count > 1);
    counts.lines_per_function.sort_unstable();
    counts
}

fn sources(src: &Path) -> Vec<Source> {
    let mut parsed = Vec::new();
    let mut test_modules = BTreeSet::new();
    for path in super::files(src, "rs") {
        let name = path.strip_prefix(src).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let module = module_of(&name);
        let mut lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        let mut items = Vec::new();
        for item in file.items {
            if !is_test(attributes(&item)) {
                items.push(item);
                continue;
            }
            let span = item.span();
            lines = lines.saturating_sub(span.end().line - span.start().line + 1);
            if let Item::Mod(item) = &item {
                let mut path = module.clone();
                path.push(item.ident.to_string());
                test_modules.insert(path);
            }
        }
        parsed.push(Source {
            name,
            module,
            items,
            lines,
        });
    }
    let in_test = |module: &[String]| {
        (1..=module.len()).any(|length| test_modules.contains(&module[..length]))
    };
    parsed.retain(|source| !in_test(&source.module));
    parsed
}

/// `store/redis.rs` is `["store", "redis"]`; `lib.rs` and `main.rs` are the root.
fn module_of(name: &str) -> Vec<String> {
    let path = name.trim_end_matches(".rs");
    match path {
        "lib" | "main" => Vec::new(),
        _ => path.split('/').map(str::to_owned).collect(),
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether `cfg(test)` or `cfg(all(test, ..))` leaves it out of the release.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let words = list.tokens.to_string().replace(' ', "");
                words == "test" || words.starts_with("all(test")
            })
    })
}

struct Functions<'c> {
    file: &'c str,
    in_trait_impl: bool,
    counts: &'c mut Counts,
}

impl Functions<'_> {
    fn add(&mut self, signature: &Signature, body: Span) {
        let lines = body.end().line - signature.fn_token.span().start().line + 1;
        self.counts.functions += 1;
        self.counts.lines_per_function.push(lines);
        let is_tuple = |argument: &FnArg| match argument {
            FnArg::Receiver(_) => false,
            FnArg::Typed(argument) => {
                matches!(&*argument.pat, Pat::Tuple(_))
                    || matches!(&*argument.ty, Type::Tuple(tuple) if !tuple.elems.is_empty())
            }
        };
        if !self.in_trait_impl && signature.inputs.iter().any(is_tuple) {
            let name = format!("{}: {}", self.file, signature.ident);
            self.counts.tuple_parameters.push(name);
        }
    }

    fn add_public(&mut self, visibility: &Visibility) {
        if matches!(visibility, Visibility::Public(_)) {
            self.counts.public_items += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(attributes(item)) {
            return;
        }
        match item {
            Item::Struct(item) => {
                self.counts.add_type(&item.ident);
                self.add_public(&item.vis);
            }
            Item::Enum(item) => {
                self.counts.add_type(&item.ident);
                self.add_public(&item.vis);
            }
            Item::Trait(item) => {
                self.counts.add_type(&item.ident);
                self.add_public(&item.vis);
            }
            Item::Type(item) => {
                self.counts.add_type(&item.ident);
                self.add_public(&item.vis);
            }
            Item::Const(item) => self.add_public(&item.vis),
            Item::Static(item) => self.add_public(&item.vis),
            Item::Mod(item) => self.add_public(&item.vis),
            Item::Use(item) => self.add_public(&item.vis),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add_public(&item.vis);
        self.add(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer = std::mem::replace(&mut self.in_trait_impl, item.trait_.is_some());
        for member in &item.items {
            match member {
                ImplItem::Fn(member) if !is_test(&member.attrs) => {
                    self.add_public(&member.vis);
                    self.add(&member.sig, member.block.span());
                    visit::visit_block(self, &member.block);
                }
                _ => {}
            }
        }
        self.in_trait_impl = outer;
    }
}

/// Groups of files of one room that depend on each other in a loop, the largest first.
fn circles(sources: &[Source]) -> Vec<Vec<String>> {
    let modules = modules(sources);
    let uses: Vec<BTreeSet<usize>> = sources
        .iter()
        .map(|source| dependencies(source, sources, &modules))
        .collect();
    let reachable: Vec<BTreeSet<usize>> = (0..sources.len())
        .map(|file| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![file]);
            while let Some(file) = next.pop() {
                next.extend(uses[file].iter().filter(|other| reached.insert(**other)));
            }
            reached
        })
        .collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for file in 0..sources.len() {
        let partners = reachable[file].iter().copied();
        let circle: Vec<usize> = partners
            .filter(|other| reachable[*other].contains(&file))
            .collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            circles.push(
                circle
                    .iter()
                    .map(|file| sources[*file].name.clone())
                    .collect(),
            );
        }
    }
    circles.sort_by_key(|circle: &Vec<String>| std::cmp::Reverse(circle.len()));
    circles
}

fn modules(sources: &[Source]) -> BTreeMap<Vec<String>, Module> {
    let mut modules = BTreeMap::new();
    for (file, source) in sources.iter().enumerate() {
        if source.name == "main.rs" {
            continue;
        }
        add_module(&mut modules, &source.module, file, &source.items);
    }
    modules
}

fn add_module(
    modules: &mut BTreeMap<Vec<String>, Module>,
    path: &[String],
    file: usize,
    items: &[Item],
) {
    let mut module = Module {
        file,
        ..Module::default()
    };
    for item in items {
        let defined = match item {
            Item::Const(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Fn(item) => Some(&item.sig.ident),
            Item::Macro(item) => item.ident.as_ref(),
            Item::Static(item) => Some(&item.ident),
            Item::Struct(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Mod(item) => {
                if let Some((_, items)) = &item.content {
                    let mut inner = path.to_vec();
                    inner.push(item.ident.to_string());
                    add_module(modules, &inner, file, items);
                }
                None
            }
            Item::Use(item) => {
                let mut leaves = Vec::new();
                flatten(&item.tree, Vec::new(), &mut leaves);
                for Leaf { path: used, name } in leaves {
                    let used = absolute(&used, path);
                    match name {
                        Some(name) => {
                            module.names.insert(name, Known::Imported(used));
                        }
                        None => module.globs.push(used),
                    }
                }
                None
            }
            _ => None,
        };
        if let Some(name) = defined {
            module.names.insert(name.to_string(), Known::Defined);
        }
    }
    modules.insert(path.to_vec(), module);
}

/// One imported name; `name` is none for a `*`.
struct Leaf {
    path: Vec<String>,
    name: Option<String>,
}

fn flatten(tree: &UseTree, mut path: Vec<String>, leaves: &mut Vec<Leaf>) {
    match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            flatten(&tree.tree, path, leaves);
        }
        UseTree::Name(tree) => {
            let name = tree.ident.to_string();
            let name = match name.as_str() {
                "self" => path.last().cloned().unwrap_or_default(),
                _ => {
                    path.push(name.clone());
                    name
                }
            };
            leaves.push(Leaf {
                path,
                name: Some(name),
            });
        }
        UseTree::Rename(tree) => {
            path.push(tree.ident.to_string());
            leaves.push(Leaf {
                path,
                name: Some(tree.rename.to_string()),
            });
        }
        UseTree::Glob(_) => leaves.push(Leaf { path, name: None }),
        UseTree::Group(tree) => {
            for tree in &tree.items {
                flatten(tree, path.clone(), leaves);
            }
        }
    }
}

/// A path from the crate's root, for one written in `module`; another crate's path stays as it is,
/// below a name that no module has.
fn absolute(path: &[String], module: &[String]) -> Vec<String> {
    let mut base = module.to_vec();
    let mut rest = path;
    while let Some(first) = rest.first() {
        match first.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                base.pop();
            }
            _ => break,
        }
        rest = &rest[1..];
    }
    base.extend(rest.iter().cloned());
    base
}

/// The file that defines what a path names, if it is one of this crate.
fn resolve(
    path: &[String],
    modules: &BTreeMap<Vec<String>, Module>,
    depth: usize,
) -> Option<usize> {
    // A cycle of re-exports would not compile; a glob may look for a name in vain.
    if depth > 16 {
        return None;
    }
    let length = (0..=path.len())
        .rev()
        .find(|length| modules.contains_key(&path[..*length]))?;
    let module = &modules[&path[..length]];
    let Some(name) = path.get(length) else {
        return Some(module.file);
    };
    match module.names.get(name) {
        Some(Known::Defined) => Some(module.file),
        Some(Known::Imported(target)) => {
            let target: Vec<String> = target.iter().chain(&path[length + 1..]).cloned().collect();
            (target != path).then(|| resolve(&target, modules, depth + 1))?
        }
        None => module.globs.iter().find_map(|glob| {
            let target: Vec<String> = glob.iter().chain(&path[length..]).cloned().collect();
            resolve(&target, modules, depth + 1)
        }),
    }
}

/// The files of the same room that a file depends on, the modules around it left out.
fn dependencies(
    source: &Source,
    sources: &[Source],
    modules: &BTreeMap<Vec<String>, Module>,
) -> BTreeSet<usize> {
    let mut paths = Paths::default();
    for item in &source.items {
        paths.visit_item(item);
    }
    let room = source.module.first();
    let is_parent = |other: &usize| source.module.starts_with(&sources[*other].module);
    let resolved = paths.found.iter().filter_map(|path| {
        let path = absolute(path, &source.module);
        resolve(&path, modules, 0)
    });
    resolved
        .filter(|other| sources[*other].module.first() == room && !is_parent(other))
        .collect()
}

/// Every path that code names, and every import that is no re-export.
#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if matches!(item.vis, Visibility::Inherited) {
            let mut leaves = Vec::new();
            flatten(&item.tree, Vec::new(), &mut leaves);
            self.found.extend(leaves.into_iter().map(|leaf| leaf.path));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter();
        self.found
            .push(segments.map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {
        // `pub(in crate::store)` is no dependency.
    }
}
