// SPDX-License-Identifier: MIT OR Apache-2.0

//! Import graph of a crate: which file uses items of which, and its cycles.
//!
//! Reads `use` statements as text. An import counts for the file that defines the item, also if
//! another file re-exports it. Re-exports themselves and test modules do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Path of a module below the crate's root, such as `["reader", "lease"]`.
type Module = Vec<String>;

/// A crate's files, by module.
pub struct Crate {
    files: BTreeMap<Module, File>,
}

/// A source file and its imports.
struct File {
    path: PathBuf,
    uses: Vec<Use>,
}

/// One imported item.
struct Use {
    /// Path as it is written, such as `["super", "error", "VideoError"]`.
    path: Vec<String>,
    /// Name in the importing module; `*` for all.
    name: String,
    is_public: bool,
}

impl Crate {
    /// Reads the files of a crate's `src` folder, without `tests.rs` and `tests/`.
    ///
    /// # Panics
    /// If a file or folder cannot be read.
    pub fn read(src: &Path) -> Self {
        let text = |path: &PathBuf| fs::read_to_string(path).expect("a source file can be read");
        let files = sources(src).into_iter().map(|path| {
            let below = path.strip_prefix(src).expect("it is below the folder").to_owned();
            (below, path)
        });
        let is_test = |below: &Path| below.iter().any(|part| part == "tests" || part == "tests.rs");
        let product = files.filter(|(below, _)| !is_test(below));
        Self::of(product.map(|(below, path)| (below, text(&path))))
    }

    /// The crate with these files: paths below its `src` folder, and texts.
    pub fn of(files: impl IntoIterator<Item = (PathBuf, String)>) -> Self {
        let files = files.into_iter().map(|(path, text)| (module(&path), File { uses: uses(&text), path }));
        Self { files: files.collect() }
    }

    /// The imports between the crate's files.
    pub fn imports(&self) -> BTreeSet<(&Path, &Path)> {
        let mut found = BTreeSet::new();
        for (module, file) in &self.files {
            for one in file.uses.iter().filter(|one| !one.is_public) {
                let target = self.resolve(module, &one.path, 8).filter(|target| target != module);
                if let Some(target) = target.and_then(|target| self.files.get(&target)) {
                    found.insert((file.path.as_path(), target.path.as_path()));
                }
            }
        }
        found
    }

    /// Groups of files that import each other, directly or through others of the group.
    pub fn cycles(&self) -> Vec<Vec<&Path>> {
        let imports = self.imports();
        let reached_from = |start| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(file) = open.pop() {
                let next = imports.iter().filter(|(from, _)| *from == file).map(|(_, to)| *to);
                open.extend(next.filter(|to| reached.insert(*to)));
            }
            reached
        };
        let reached: BTreeMap<&Path, _> =
            imports.iter().map(|(file, _)| (*file, reached_from(*file))).collect();
        let is_in_cycle = |a: &Path, b: &Path| {
            reached.get(a).is_some_and(|all| all.contains(b))
                && reached.get(b).is_some_and(|all| all.contains(a))
        };
        let groups = reached.keys().map(|file| {
            let group: Vec<_> = reached.keys().copied().filter(|other| is_in_cycle(file, other)).collect();
            group
        });
        groups.filter(|group| !group.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the module that defines an item which `module` refers to; `None` for other crates.
    fn resolve(&self, module: &Module, path: &[String], depth: u32) -> Option<Module> {
        let depth = depth.checked_sub(1)?;
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Module::new(),
            "self" => module.clone(),
            "super" => parent(module)?,
            name => {
                let child = [module.as_slice(), &[name.to_owned()]].concat();
                self.files.get(&child)?;
                child
            }
        };
        while let Some((name, after)) = rest.split_first() {
            let child = [at.as_slice(), std::slice::from_ref(name)].concat();
            if name == "super" {
                at = parent(&at)?;
            } else if self.files.contains_key(&child) {
                at = child;
            } else {
                break;
            }
            rest = after;
        }
        let Some((name, after)) = rest.split_first() else { return Some(at) };
        // The module defines the item, or has it from elsewhere.
        let imported = self.files.get(&at).into_iter().flat_map(|file| &file.uses);
        let source = imported.filter(|one| one.name == *name).find_map(|one| {
            let path = [one.path.as_slice(), after].concat();
            self.resolve(&at, &path, depth)
        });
        Some(source.unwrap_or(at))
    }
}

fn parent(module: &Module) -> Option<Module> {
    module.split_last().map(|(_, parent)| parent.to_vec())
}

/// Returns the module of a file.
fn module(path: &Path) -> Module {
    let mut parts: Module = path.with_extension("").iter().map(|part| part.display().to_string()).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// Returns the source files below a folder.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a source folder can be read");
    let entries = entries.map(|entry| entry.expect("a folder can be listed").path());
    let files = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(files).filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect()
}

/// Returns the imports of a source file, test modules left out.
fn uses(text: &str) -> Vec<Use> {
    let product = match text.find("#[cfg(test)]\nmod tests {") {
        Some(tests) => &text[..tests],
        None => text,
    };
    let mut found = Vec::new();
    let mut lines = product.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    while let Some(line) = lines.next() {
        let Some((is_public, first)) = statement(line) else { continue };
        let mut tree = first.to_owned();
        while !tree.contains(';') {
            let Some(line) = lines.next() else { break };
            tree.push_str(line);
            tree.push(' ');
        }
        for path in leaves("", tree.split(';').next().unwrap_or_default()) {
            let (path, alias) = path.split_once(" as ").unwrap_or((&path, ""));
            let mut parts: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
            if parts.len() > 1 && parts.last().is_some_and(|last| last == "self" || last == "*") {
                parts.pop();
            }
            let last = if path.ends_with('*') { "*" } else { parts.last().map_or("", String::as_str) };
            let name = if alias.is_empty() { last } else { alias.trim() }.to_owned();
            found.push(Use { path: parts, name, is_public });
        }
    }
    found
}

/// Returns the tree of a line that begins an import, and whether it is a re-export.
fn statement(line: &str) -> Option<(bool, &str)> {
    if let Some(tree) = line.strip_prefix("use ") {
        return Some((false, tree));
    }
    let rest = line.strip_prefix("pub")?;
    let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
    rest.trim_start().strip_prefix("use ").map(|tree| (true, tree))
}

/// Returns the paths of a tree of imports, such as `a::{b, c::d}`.
pub fn leaves(prefix: &str, tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else { return vec![format!("{prefix}{tree}")] };
    let (prefix, inner) =
        (format!("{prefix}{head}"), rest.trim_end().strip_suffix('}').expect("braces are closed"));
    let mut depth = 0;
    let items = inner.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    items.map(str::trim).filter(|item| !item.is_empty()).flat_map(|item| leaves(&prefix, item)).collect()
}
