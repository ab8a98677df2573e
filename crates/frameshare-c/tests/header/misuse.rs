// SPDX-License-Identifier: MIT OR Apache-2.0

//! Wrong arguments of every function: a program in C, made from the declarations of the header,
//! calls each function once with valid arguments, which it must not refuse, and then once for each
//! wrong value of each argument, with valid other ones.
//!
//! A new function, struct or field is covered by itself. A new kind of object needs a valid one in
//! [`OBJECTS`]; an argument that may be NULL is listed in [`NULLABLE`].

use crate::{Declarations, built, header, of_header, root, run};
use std::{collections::BTreeSet, fmt::Write, fs, process::Command};

/// Each kind of object: an expression for one that stays, and for one that the call may take.
const OBJECTS: [(&str, &str, &str); 8] = [
    ("frameshare_reader", "reader", ""),
    ("frameshare_frame", "frame", "a_frame ()"),
    ("frameshare_exporter", "exporter", ""),
    ("frameshare_new_frame", "new_frame", "a_new_frame ()"),
    ("frameshare_observer", "observer", ""),
    ("frameshare_snapshot", "snapshot", ""),
    ("frameshare_stream_list", "list", ""),
    ("frameshare_capture", "capture", ""),
];

/// Functions that take their object, with other arguments.
const TAKING: [&str; 3] =
    ["frameshare_exporter_publish", "frameshare_exporter_publish_on", "frameshare_frame_release_on"];

/// Arguments that may be NULL.
const NULLABLE: [(&str, &str); 6] = [
    ("frameshare_reader_open", "config"),
    ("frameshare_exporter_create", "config"),
    ("frameshare_exporter_publish", "options"),
    ("frameshare_exporter_publish", "sequence"),
    ("frameshare_exporter_publish_on", "options"),
    ("frameshare_exporter_publish_on", "sequence"),
];

/// Functions that are not called with valid arguments only: the stream would end, and it has no
/// incidents.
const EXEMPT: [&str; 2] = ["frameshare_exporter_end_stream", "frameshare_snapshot_get_incident"];

/// Texts of structs that may be anything: they are not read with host memory.
const ANY_TEXT: [&str; 1] = ["cuda_uuid"];

/// Required result of a call.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// Anything but INVALID_ARGUMENT, a bug or a crash.
    Accepted,
    /// INVALID_ARGUMENT with a message.
    Refused,
    /// Anything but a bug or a crash.
    Survives,
}
use Fate::{Accepted, Refused, Survives};

/// An argument or a field: its type without `const`, and its name.
#[derive(Clone)]
struct Variable {
    kind: String,
    is_const: bool,
    name: String,
}

impl Variable {
    fn of(declared: &str) -> Self {
        let declared = declared.trim();
        let at = declared.rfind([' ', '*']).expect("it has a type and a name") + 1;
        let kind = declared[..at].trim();
        let is_const = kind.starts_with("const ");
        let kind = kind.trim_start_matches("const ").to_owned();
        Self { kind, is_const, name: declared[at..].to_owned() }
    }

    /// The type that a pointer points to.
    fn target(&self) -> Option<&str> {
        self.kind.strip_suffix('*').map(str::trim)
    }
}

fn variables(declared: &str, separator: char) -> Vec<Variable> {
    let parts = declared.split(separator).map(str::trim).filter(|part| !part.is_empty() && *part != "void");
    parts.map(Variable::of).collect()
}

/// The program under construction.
struct Program {
    header: Declarations,
    body: String,
    calls: usize,
}

impl Program {
    fn object(&self, kind: &str) -> Option<&(&str, &str, &str)> {
        OBJECTS.iter().find(|(name, ..)| *name == kind)
    }

    /// Returns whether a type is a struct that begins with its size.
    fn has_size(&self, kind: &str) -> bool {
        self.header.structs.get(kind).is_some_and(|fields| fields.starts_with("size_t size"))
    }

    /// Returns a valid value of an argument.
    fn valid(&self, function: &str, argument: &Variable) -> String {
        let target = argument.target();
        match argument.kind.as_str() {
            // A stream is opened where there is one, and made where there is none.
            "char *" if function == "frameshare_exporter_create" => "\"misuse\"".into(),
            "char *" => "\"valid\"".into(),
            "void *" if argument.name == "target" => "buffer".into(),
            // Streams and data of callers are not looked at.
            "void *" if !argument.is_const => "NULL".into(),
            "void *" => "\"text\"".into(),
            "int64_t" => "0".into(),
            "uint32_t" if argument.name == "kind" => "FRAMESHARE_EVENT_APPLICATION".into(),
            "size_t" if argument.name == "payload_size" => "4".into(),
            "size_t" if argument.name == "target_size" => "sizeof buffer".into(),
            "size_t" if argument.name == "stride" => "256".into(),
            "int" | "uint32_t" | "uint64_t" | "size_t" | "bool" => "0".into(),
            "frameshare_log_function" => "NULL".into(),
            kind if self.header.enums.contains_key(kind) => format!("({kind}) 0"),
            _ => {
                let target = target.unwrap_or_else(|| panic!("{function}: no value of {}", argument.kind));
                match self.object(target) {
                    Some((_, _, fresh)) if TAKING.contains(&function) && !fresh.is_empty() => {
                        (*fresh).to_owned()
                    }
                    Some((_, valid, _)) => (*valid).to_owned(),
                    None if self.has_size(target) => format!("&{target}_value.value"),
                    None => "(void *) out".into(),
                }
            }
        }
    }

    /// Calls a function with a wrong value of one argument.
    fn call(&mut self, function: &str, arguments: &[Variable], wrong: (usize, &str), fate: Fate) {
        let values = arguments.iter().enumerate().map(|(index, argument)| {
            if index == wrong.0 { wrong.1.to_owned() } else { self.valid(function, argument) }
        });
        let call = format!("{function} ({})", values.collect::<Vec<_>>().join(", "));
        let macro_name = match self.header.functions[function].split(' ').next() {
            Some("frameshare_status") => match fate {
                Accepted => "MUST_ACCEPT",
                Refused => "MUST_REFUSE",
                Survives => "MUST_SURVIVE",
            },
            _ => "CALL",
        };
        let (_, text) = (self.calls += 1, call.replace('\\', "\\\\").replace('"', "\\\""));
        writeln!(self.body, "  {macro_name} (\"{text}\", {call});").expect("a text grows");
    }

    /// Calls a function with every wrong value of an argument.
    fn misuse(&mut self, function: &str, arguments: &[Variable], index: usize) {
        let Variable { kind, name, is_const } = arguments[index].clone();
        let takes_any_null = NULLABLE.contains(&(function, name.as_str()));
        let null = if takes_any_null { Survives } else { Refused };
        let is_enum = self.header.enums.contains_key(&kind);
        let mut call = |wrong: &str, fate| self.call(function, arguments, (index, wrong), fate);
        match kind.as_str() {
            "char *" => {
                call("NULL", Refused);
                call("\"\\377\\376\"", Refused);
                call("\"\"", Refused);
                call("long_text", Refused);
            }
            "void *" if name == "target" => call("NULL", Refused),
            "void *" if is_const => call("NULL", Refused),
            "void *" => call("buffer", Survives),
            "int64_t" => {}
            "uint32_t" | "int" if name == "kind" => call("0", Refused),
            "uint32_t" | "size_t" if name == "index" => call("UINT32_MAX", Refused),
            "size_t" if name == "payload_size" => {
                for size in ["SIZE_MAX", "SIZE_MAX / 2", "(size_t) 1 << 40"] {
                    call(size, Refused);
                }
            }
            "size_t" => ["0", "SIZE_MAX"].into_iter().for_each(|wrong| call(wrong, Refused)),
            "uint64_t" => call("UINT64_MAX", Survives),
            "bool" => call("true", Survives),
            "frameshare_log_function" => {}
            kind if is_enum => call(&format!("({kind}) 99"), Survives),
            _ => {
                let target = arguments[index].target().expect("other types are pointers").to_owned();
                call("NULL", null);
                call("(void *) ((char *) aligned + 1)", Refused);
                if self.has_size(&target) {
                    self.misuse_struct(function, arguments, index, &target);
                }
            }
        }
    }

    /// Calls a function with wrong sizes and fields of a struct.
    fn misuse_struct(&mut self, function: &str, arguments: &[Variable], index: usize, kind: &str) {
        let value = format!("{kind}_value.value");
        let mut wrong: Vec<(String, String, Fate)> = ["0", "1", "7", "SIZE_MAX", "SIZE_MAX / 2", "4097"]
            .map(|size| ("size".to_owned(), size.to_owned(), Refused))
            .into();
        for size in ["4095", "4096", "sizeof VALUE - 1", "sizeof VALUE + 1"] {
            wrong.push(("size".to_owned(), size.replace("VALUE", &value), Survives));
        }
        if arguments[index].is_const {
            self.add_fields(kind, "", &mut wrong);
        }
        for (field, wrong, fate) in wrong {
            let set = format!("({value}.{field} = {wrong}, &{value})");
            self.call(function, arguments, (index, &set), fate);
        }
    }

    fn add_fields(&self, kind: &str, prefix: &str, wrong: &mut Vec<(String, String, Fate)>) {
        let fields = variables(&self.header.structs[kind], ';');
        for (at, Variable { kind, name, .. }) in fields.iter().enumerate() {
            let mut add = |value: &str, fate| wrong.push((format!("{prefix}{name}"), value.into(), fate));
            match kind.as_str() {
                "size_t" if at == 0 => {}
                // With and without the values that it counts.
                "size_t" => ["SIZE_MAX", "SIZE_MAX / 2", "(size_t) 1 << 40"]
                    .into_iter()
                    .for_each(|count| add(count, Refused)),
                "char *" if ANY_TEXT.contains(&name.as_str()) => add("\"\\377\"", Survives),
                "char *" => {
                    add("\"\\377\\376\"", Refused);
                    // Names are cut.
                    add("long_text", Survives);
                }
                "bool" => add("true", Survives),
                "int64_t" | "int32_t" => {
                    ["INT32_MIN", "INT32_MAX"].into_iter().for_each(|value| add(value, Survives));
                }
                "uint32_t" | "uint64_t" => {
                    ["0", "1", "UINT32_MAX"].into_iter().for_each(|value| add(value, Survives));
                }
                kind if self.header.enums.contains_key(kind) => add(&format!("({kind}) 99"), Refused),
                kind if self.header.structs.contains_key(kind) => {
                    self.add_fields(kind, &format!("{prefix}{name}."), wrong);
                }
                kind => assert!(kind.ends_with('*'), "{name}: no wrong value of {kind}"),
            }
        }
    }
}

/// Returns the program.
fn program() -> (String, usize) {
    let functions = of_header(&header()).functions;
    let mut program = Program { header: of_header(&header()), body: String::new(), calls: 0 };
    for (function, declared) in &functions {
        let arguments = declared.split_once(" (").expect("a function").1.trim_end_matches(')').trim();
        let arguments = variables(arguments, ',');
        if declared.starts_with("frameshare_status") && !EXEMPT.contains(&function.as_str()) {
            program.call(function, &arguments, (usize::MAX, ""), Accepted);
        }
        for index in 0..arguments.len() {
            program.misuse(function, &arguments, index);
        }
    }
    // One of each struct, with room behind it for those of later versions.
    let (mut values, mut resets) = (String::new(), String::new());
    for kind in program.header.structs.keys().filter(|kind| program.has_size(kind)) {
        let init = kind.to_uppercase() + "_INIT";
        writeln!(values, "static union {{ {kind} value; char room[8192]; }} {kind}_value;").expect("a text");
        writeln!(
            resets,
            "  {{ {kind} init = {init}; memset (&{kind}_value, 0, sizeof {kind}_value); {kind}_value.value = init; }}"
        )
        .expect("a text");
    }
    let template = include_str!("misuse.c");
    let source = template
        .replace("/* VALUES */", &values)
        .replace("/* RESETS */", &resets)
        .replace("/* CALLS */", &program.body);
    (source, program.calls)
}

/// The library refuses what it can detect with a message, and no call ends the process.
#[test]
fn wrong_arguments_of_every_function_are_refused() {
    let (source, calls) = program();
    let declared = of_header(&header()).functions;
    let called =
        declared.keys().filter(|name| source.contains(&format!(", {name} ("))).collect::<BTreeSet<_>>();
    let silent = ["frameshare_last_error", "frameshare_version", "frameshare_wait_for_gpu"];
    let missing = declared.keys().filter(|name| !called.contains(name) && !silent.contains(&name.as_str()));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(calls > 300, "{calls} calls");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("misuse.c");
    fs::write(&file, source).expect("the folder can be written");
    for name in ["libframeshare.so.0", "libframeshare.so"] {
        std::os::unix::fs::symlink(built().join("libframeshare_c.so"), folder.path().join(name))
            .expect("a link");
    }
    let build = |name: &str, sanitizer: &[&str]| {
        let path = folder.path().join(name);
        let mut command = Command::new("cc");
        command.args(["-std=c99", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]).args(sanitizer);
        command.arg(format!("-I{}", root().join("include").display())).arg("-I").arg(root().join("tests/c"));
        command.arg(&file).arg("-o").arg(&path).args(["-lframeshare", "-L"]).arg(folder.path());
        (path, command)
    };
    let checked = |path: &std::path::Path| {
        let mut command = Command::new(path);
        command.env("LD_LIBRARY_PATH", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
        // Objects that a refused call has taken are not leaks of the program.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        assert_eq!(run(&mut command), format!("{calls} calls\n"));
    };
    let (plain, mut compiler) = build("plain", &[]);
    run(&mut compiler);
    checked(&plain);
    // The library's allocations are the sanitizer's, too.
    let (sanitized, mut compiler) = build("sanitized", &["-fsanitize=address"]);
    if !compiler.output().is_ok_and(|output| output.status.success()) {
        return frameshare_tests::skip::skip(
            "wrong_arguments_of_every_function_are_refused",
            "no AddressSanitizer for C",
        );
    }
    checked(&sanitized);
}
