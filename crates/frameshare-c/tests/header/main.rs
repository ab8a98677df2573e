// SPDX-License-Identifier: MIT OR Apache-2.0

//! The header and the library: the same functions, structs and enumerators, in C and in Rust.
//!
//! Rust's declarations are parsed with syn, and written in the form of C. The header's are taken
//! from its text. A compiler for C then reports sizes, offsets and defaults of the structs, and a
//! program that is made from the declarations calls each function with wrong arguments.

mod misuse;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use syn::{Expr, Fields, FnArg, Item, Lit, Pat, PointerMutability, ReturnType, Type};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn header() -> String {
    read("include/frameshare.h")
}

/// The folder with the library that cargo has built with this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.parent().expect("it is in a folder").to_owned()
}

/// Declarations by name, each in one line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Declarations {
    functions: BTreeMap<String, String>,
    structs: BTreeMap<String, String>,
    enums: BTreeMap<String, String>,
}

/// Returns the name in C of a type of Rust: `RawFormat` and `Format` are `frameshare_format`.
fn c_name(rust: &str) -> String {
    let name = rust.strip_prefix("Raw").unwrap_or(rust);
    let snake = name.chars().fold(String::new(), |mut name, c| {
        if c.is_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
        name
    });
    format!("frameshare{snake}")
}

fn c_type(kind: &Type) -> String {
    match kind {
        Type::Ptr(pointer) => {
            let target = c_type(&pointer.elem);
            let space = if target.ends_with('*') { "" } else { " " };
            match (&*pointer.elem, matches!(pointer.mutability, PointerMutability::Const(_))) {
                // A constant pointer's target; of a pointer's pointer it is the outer one.
                (Type::Ptr(_), true) => format!("{target}{space}const *"),
                (_, true) => format!("const {target}{space}*"),
                (_, false) => format!("{target}{space}*"),
            }
        }
        Type::Path(path) => {
            let name = path.path.segments.last().expect("a type has a name").ident.to_string();
            match name.as_str() {
                "usize" => "size_t".into(),
                "isize" => "ptrdiff_t".into(),
                "u8" => "uint8_t".into(),
                "u32" => "uint32_t".into(),
                "i32" => "int32_t".into(),
                "u64" => "uint64_t".into(),
                "i64" => "int64_t".into(),
                "c_int" => "int".into(),
                "c_char" => "char".into(),
                "c_void" => "void".into(),
                "CBool" => "bool".into(),
                name => c_name(name),
            }
        }
        _ => panic!("a type that the header has no form for"),
    }
}

fn declaration(kind: &str, name: &str) -> String {
    if kind.ends_with('*') { format!("{kind}{name}") } else { format!("{kind} {name}") }
}

/// Prefix of the enumerators of an enum.
fn prefix(name: &str) -> String {
    match name {
        "frameshare_status" => "FRAMESHARE_".into(),
        "frameshare_item_kind" => "FRAMESHARE_ITEM_".into(),
        name => name.to_uppercase() + "_",
    }
}

/// Adds the declarations of a source file. Structs are those of the macro `structs::define`, and
/// those that are `repr(C)`.
fn add(file: &str, found: &mut Declarations) {
    for item in syn::parse_file(file).expect("a source file is Rust").items {
        match item {
            Item::Fn(function) if function.sig.abi.is_some() => {
                let name = function.sig.ident.to_string();
                let arguments = function.sig.inputs.iter().map(|argument| match argument {
                    FnArg::Typed(argument) => match &*argument.pat {
                        Pat::Ident(name) => declaration(&c_type(&argument.ty), &name.ident.to_string()),
                        _ => panic!("{name}: an argument has a name"),
                    },
                    FnArg::Receiver(_) => panic!("{name}: a function of C has no receiver"),
                });
                let arguments = arguments.collect::<Vec<_>>().join(", ");
                let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments };
                let result = match &function.sig.output {
                    ReturnType::Default => "void".to_owned(),
                    ReturnType::Type(_, kind) => c_type(kind),
                };
                found
                    .functions
                    .insert(name.clone(), format!("{} ({arguments})", declaration(&result, &name)));
            }
            Item::Macro(call) if call.mac.path.segments.last().is_some_and(|name| name.ident == "define") => {
                let text = call.mac.tokens.to_string();
                let (head, fields) = text.split_once('{').expect("a struct has fields");
                let name = head.split('"').nth_back(1).expect("it has a name in C").to_owned();
                // The type of each field, without its default.
                let fields = fields.rsplit_once('}').expect("the fields end").0.replace(" :: ", "::");
                let fields = split_fields(&fields).into_iter().map(|(field, kind)| {
                    declaration(&c_type(&syn::parse_str(&kind).expect("a type")), &field)
                });
                let fields = std::iter::once("size_t size".to_owned()).chain(fields);
                found.structs.insert(name, fields.collect::<Vec<_>>().join("; "));
            }
            Item::Struct(item) if is_repr_c(&item.attrs) && item.ident != "name" => {
                let Fields::Named(fields) = &item.fields else { panic!("fields have names") };
                let fields = fields.named.iter().map(|field| {
                    let name = field.ident.as_ref().expect("a field has a name").to_string();
                    declaration(&c_type(&field.ty), &name)
                });
                let fields = fields.collect::<Vec<_>>().join("; ");
                found.structs.insert(c_name(&item.ident.to_string()), fields);
            }
            Item::Enum(item) if is_repr_c(&item.attrs) => {
                let name = c_name(&item.ident.to_string());
                let variants = item.variants.iter().enumerate().map(|(number, variant)| {
                    assert!(variant.discriminant.is_none(), "{name}: enumerators are counted");
                    let variant = c_name(&variant.ident.to_string());
                    let variant = variant.trim_start_matches("frameshare_").to_uppercase();
                    format!("{}{variant} = {number}", prefix(&name))
                });
                found.enums.insert(name.clone(), variants.collect::<Vec<_>>().join(", "));
            }
            _ => {}
        }
    }
}

/// Returns name and type of fields such as `a: u32 = 0, b: *const T = f(x, y),`.
fn split_fields(text: &str) -> Vec<(String, String)> {
    let mut depth = 0_i32;
    let parts = text.split(|c: char| {
        depth += i32::from("({".contains(c)) - i32::from(")}".contains(c));
        c == ',' && depth == 0
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    let field = |part: &str| {
        let (name, rest) = part.split_once(':').expect("a field has a type");
        let (kind, _) = rest.split_once('=').expect("a field has a default");
        (name.trim().to_owned(), kind.trim().to_owned())
    };
    parts.map(field).collect()
}

fn is_repr_c(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("repr")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|argument| argument == "C")
    })
}

fn of_rust() -> Declarations {
    let mut found = Declarations::default();
    for entry in fs::read_dir(root().join("src")).expect("the sources are there") {
        let path = entry.expect("a folder can be listed").path();
        // The macro's own definition is none of C's structs.
        if path.file_name().is_some_and(|name| name != "structs.rs" && name != "tests.rs") {
            add(&read(path), &mut found);
        }
    }
    found
}

/// Returns the text without comments, directives and line breaks.
fn code(header: &str) -> String {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text += before;
        rest = comment.split_once("*/").expect("a comment ends").1;
    }
    text += rest;
    let mut continued = false;
    let lines = text.lines().filter(|line| {
        let is_directive = continued || line.trim_start().starts_with('#');
        continued = is_directive && line.ends_with('\\');
        !is_directive
    });
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

fn of_header(header: &str) -> Declarations {
    let mut found = Declarations::default();
    let code = code(header).replace("extern \"C\" {", "");
    let mut rest = code.as_str();
    while let Some(end) = rest.find([';', '{']) {
        let head = rest[..end].trim();
        if rest[end..].starts_with('{') {
            let (body, after) = rest[end + 1..].split_once('}').expect("a body ends");
            let (name, after) = after.split_once(';').expect("a type ends");
            let name = name.trim().to_owned();
            match head {
                head if head == format!("typedef struct {name}") => {
                    let fields = body.trim().trim_end_matches(';').replace(" ;", ";");
                    found.structs.insert(name, fields);
                }
                head if head == format!("typedef enum {name}") => {
                    found.enums.insert(name, body.trim().to_owned());
                }
                head => panic!("{head:?} is neither a struct nor an enum with its name"),
            }
            rest = after;
        } else {
            if let Some(function) = head.strip_prefix("typedef void (*frameshare_log_function) ") {
                // `LogFunction` of Rust.
                assert_eq!(function, "(frameshare_log_level level, const char *message, void *data)");
            } else if let Some((name, _)) = head.split_once(" (") {
                let name = name.rsplit([' ', '*']).next().expect("a function has a name");
                found.functions.insert(name.to_owned(), head.to_owned());
            } else {
                assert!(head.starts_with("typedef struct frameshare_"), "{head:?} is no declaration");
            }
            rest = &rest[end + 1..];
        }
    }
    found
}

#[test]
fn header_declares_what_the_library_defines() {
    let (rust, mut header) = (of_rust(), of_header(&header()));
    assert_eq!(header.functions, rust.functions);
    assert_eq!(header.structs, rust.structs);
    // Enums whose numbers come from the engine are compared with those in `src/tests.rs`.
    let enums = rust.enums.keys().cloned().collect::<BTreeSet<_>>();
    assert!(enums.contains("frameshare_status") && enums.contains("frameshare_item_kind"));
    header.enums.retain(|name, _| enums.contains(name));
    assert_eq!(header.enums, rust.enums);
    assert!(rust.functions.len() > 35 && rust.structs.len() > 10);
}

/// Negative control: a header with another type, name, order or number is not the same.
#[test]
fn every_difference_is_reported() {
    let header = header();
    let rust = of_rust();
    for (old, new) in [
        ("int64_t timeout_ns, frameshare_frame **frame", "int32_t timeout_ns, frameshare_frame **frame"),
        ("const frameshare_frame *frame, frameshare_format", "frameshare_frame *frame, frameshare_format"),
        ("void frameshare_frame_release (", "int frameshare_frame_release ("),
        ("frameshare_reader_get_fd (frameshare_reader *reader, int *fd)", "frameshare_reader_get_fd (void)"),
        ("uint32_t max_held;", "uint64_t max_held;"),
        ("uint32_t max_held;", "uint32_t max_hold;"),
        ("  bool reconnect;\n", ""),
        ("FRAMESHARE_TIMEOUT = 1", "FRAMESHARE_TIMEOUT = 21"),
    ] {
        let changed = header.replacen(old, new, 1);
        assert_ne!(changed, header, "{old} is not in the header");
        let mut changed = of_header(&changed);
        changed.enums.retain(|name, _| rust.enums.contains_key(name));
        assert_ne!(changed, rust, "{new}");
    }
}

/// The comment of each function documents ownership, failures, and the threads that may call it.
#[test]
fn every_function_is_documented() {
    let header = header();
    for (name, declared) in of_header(&header).functions {
        let start = declared.split_once('(').expect("a function").0;
        let (before, _) = header.split_once(&format!("\n{start}(")).expect("it is at the begin of a line");
        let comment = before.rsplit_once("/**").expect("it has a comment").1;
        assert!(comment.trim_end().ends_with("*/"), "{name} has no comment");
        for part in ["Ownership: ", "Failure: ", "Threads: "] {
            assert!(comment.contains(part), "{name} does not say its {part:?}");
        }
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("tools write UTF-8")
}

/// The shared library has the functions of the list and no other symbols.
#[test]
fn exported_symbols_are_those_of_the_list() {
    let list = read("libframeshare.symbols");
    let listed = list.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>();
    let declared = of_header(&header()).functions;
    assert_eq!(listed, declared.keys().map(String::as_str).collect::<Vec<_>>());
    let library = built().join("libframeshare_c.so");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library));
    let exported = symbols.lines().filter_map(|line| line.split(' ').next()).collect::<BTreeSet<_>>();
    assert_eq!(exported.into_iter().collect::<Vec<_>>(), listed);
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains("Library soname: [libframeshare.so.0]"), "{dynamic}");
}

#[test]
fn version_is_that_of_the_crate() {
    let header = header();
    let number = |part: &str| {
        let (_, rest) = header.split_once(&format!("#define FRAMESHARE_VERSION_{part} ")).expect("a version");
        rest.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(["MAJOR", "MINOR", "PATCH"].map(number).join("."), env!("CARGO_PKG_VERSION"));
}

/// A program in C reports the size of each struct, the offset of each field and the default of each
/// number, as Rust's declarations with their defaults give them.
#[test]
fn defaults_of_the_macros_are_those_of_the_library() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut source = String::from("#include <frameshare.h>\n#include <stdio.h>\nint main (void)\n{\n");
    let mut expected = Vec::new();
    let filled = [
        ("frameshare_format", "color"),
        ("frameshare_reader_config", "exporter_uid"),
        ("frameshare_exporter_config", "allowed_gid_count"),
        ("frameshare_publish_options", "timeout_ns"),
    ];
    for (name, fields) in defaults() {
        let macro_name = name.to_uppercase() + "_INIT";
        source += &format!("  {{ {name} value = {macro_name};\n");
        source += &format!("  printf (\"{name} %d\\n\", value.size == sizeof value);\n");
        expected.push(format!("{name} 1"));
        for (field, default) in fields {
            source +=
                &format!("  printf (\"{name}.{field} %lld\\n\", (long long) (size_t) value.{field});\n");
            expected.push(format!("{name}.{field} {default}"));
        }
        // Later fields are not in the padding of structs that programs fill.
        if let Some(last) = filled.iter().find_map(|(filled, last)| (*filled == name).then_some(last)) {
            source += &format!(
                "  printf (\"%d\\n\", offsetof ({name}, {last}) + sizeof value.{last} == sizeof value);\n"
            );
            expected.push("1".into());
        }
        source += "  }\n";
    }
    source += "  return 0;\n}\n";
    let (file, program) = (folder.path().join("defaults.c"), folder.path().join("defaults"));
    fs::write(&file, source).expect("the folder can be written");
    let include = format!("-I{}", root().join("include").display());
    run(Command::new("cc").arg(include).arg(&file).arg("-o").arg(&program));
    let found = run(&mut Command::new(program));
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
}

/// Returns each struct with its fields of numbers and pointers, and their defaults.
fn defaults() -> Vec<(String, Vec<(String, i64)>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("src")).expect("the sources are there") {
        let text = read(entry.expect("a folder can be listed").path());
        for definition in text.split("\nstructs::define! {").skip(1) {
            let (head, fields) = definition.split_once('{').expect("a struct has fields");
            let name = head.split('"').nth(1).expect("it has a name in C").to_owned();
            let fields = fields.split_once("\n    }").expect("the fields end").0;
            let fields = fields.lines().map(str::trim).filter(|line| !line.is_empty());
            let fields = fields.filter_map(|field| {
                let (field, default) = field.trim_end_matches(',').split_once(" = ").expect("a default");
                let field = field.split(':').next().expect("a name").to_owned();
                value(default).map(|value| (field, value))
            });
            found.push((name, fields.collect()));
        }
    }
    assert!(found.len() > 9, "{found:?}");
    found
}

/// Returns the value of a default; none for that of a struct.
fn value(default: &str) -> Option<i64> {
    match default {
        "ptr::null()" | "ptr::null_mut()" | "MEMORY_HOST" => Some(0),
        "NO_TIME" => Some(-1),
        "UNKNOWN" => None,
        number => match syn::parse_str(number).expect("a number") {
            Expr::Lit(literal) => match literal.lit {
                Lit::Int(number) => Some(number.base10_parse().expect("it fits")),
                _ => panic!("{number}"),
            },
            Expr::Unary(_) => Some(number.replace('_', "").parse().expect("a number")),
            _ => panic!("{number}"),
        },
    }
}

/// C99, and C++11 as the oldest that has its types, without a warning; the types for C++ from
/// C++17 on.
#[test]
fn headers_compile_without_warnings() {
    let include = root().join("include");
    let check = |compiler: &str, language: &str, standard: &str, header: &str| {
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-fsyntax-only", "-x"]);
        run(command.arg(language).arg(format!("-std={standard}")).arg(include.join(header)));
    };
    check("cc", "c", "c99", "frameshare.h");
    check("cc", "c", "c11", "frameshare.h");
    if Command::new("c++").arg("--version").output().is_err() {
        return frameshare_tests::skip::skip("headers_compile_without_warnings", "no compiler for C++");
    }
    check("c++", "c++", "c++11", "frameshare.h");
    check("c++", "c++", "c++17", "frameshare.hpp");
    check("c++", "c++", "c++20", "frameshare.hpp");
}
