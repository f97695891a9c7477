//! The interface against NCCL's newest header: every function with its parameters, every structure with its offsets,
//! every number of an enumeration.
//!
//! `newest.txt` holds what the header says. Where NCCL's package is installed (`make setup-nccl`), the file is compared
//! with the package's header, too.

#![allow(unsafe_code)] // Symbols are looked up in the library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What NCCL's header says.
const NEWEST: &str = include_str!("newest.txt");

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text without comments.
fn plain(header: &str) -> String {
    let mut plain = String::new();
    let mut rest = header;
    while let Some(at) = rest.find("/*") {
        plain.push_str(&rest[..at]);
        rest = rest[at..].split_once("*/").map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let lines = plain.lines().map(|line| line.split("//").next().unwrap().trim_end());
    // A directive may continue on the next line.
    lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ")
}

/// The functions of a header: name, and its types as words.
fn functions(header: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for statement in plain(header).split(';') {
        let statement = statement.lines().filter(|line| !line.trim_start().starts_with('#'));
        let statement = statement.collect::<Vec<_>>().join(" ").replace("extern \"C\" {", "");
        let Some((before, parameters)) = statement.split_once('(') else { continue };
        // What precedes a deprecated function.
        let (before, parameters) = match before.contains("__attribute__") {
            true => {
                let rest = statement.rsplit_once("))").map_or("", |(_, rest)| rest);
                let Some(split) = rest.split_once('(') else { continue };
                split
            }
            false => (before, parameters),
        };
        let Some((result, name)) = before.trim().rsplit_once([' ', '*']) else { continue };
        let name = name.trim();
        if !name.starts_with("nccl") && !name.starts_with("pnccl") || result.contains("typedef") {
            continue;
        }
        let parameters = parameters.rsplit_once(')').map_or("", |(parameters, _)| parameters);
        let kinds: Vec<String> =
            parameters.split(',').map(kind).filter(|k| !k.is_empty()).collect();
        let pointer = if before.contains('*') { "*" } else { "" };
        let result = result.trim().trim_start_matches('}').trim().trim_end_matches('*').trim();
        found.insert(name.to_owned(), format!("{result}{pointer} ({})", kinds.join(", ")));
    }
    found
}

/// A parameter's type, without its name.
fn kind(parameter: &str) -> String {
    let spaced = parameter.replace('*', " * ");
    let mut words: Vec<&str> = spaced.split_whitespace().collect();
    if words == ["void"] {
        return String::new();
    }
    // A handle passed by value may be const in one header and not in another: this is no part of the type.
    let by_value = !words.contains(&"*");
    if words.len() > 1 && words.last() != Some(&"*") {
        words.pop();
    }
    words.retain(|word| !(by_value && *word == "const"));
    words.join(" ")
}

fn listed(kind: &str) -> Vec<&'static str> {
    let lines = NEWEST.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' ')).collect()
}

fn listed_functions() -> BTreeMap<String, String> {
    let split =
        |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.to_owned()));
    listed("function").into_iter().filter_map(split).collect()
}

#[test]
fn header_declares_what_nccl_declares() {
    let header = std::fs::read_to_string(here().join("include/nccl.h")).unwrap();
    let (ours, theirs) = (functions(&header), listed_functions());
    assert!(theirs.len() > 140, "{} functions are listed", theirs.len());
    assert_eq!(ours, theirs);
}

#[test]
fn library_has_every_function_of_the_header() {
    let built = std::env::current_exe().unwrap();
    let library = built.parent().unwrap().join("libnetsum_nccl.so");
    // SAFETY: the library that cargo has just built; loading it runs nothing.
    let library = unsafe { libloading::Library::new(library) }.unwrap();
    let lacks = |name: &&String| {
        // SAFETY: the symbol is looked up and not called.
        unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
    };
    let listed = listed_functions();
    let missing: Vec<&String> = listed.keys().filter(lacks).collect();
    assert!(missing.is_empty(), "no symbols of {missing:?}");
}

/// Sizes, offsets and numbers that a C compiler reads in a header, as lines of `newest.txt`.
fn measured(name: &str, includes: &[PathBuf], first: &str) -> Vec<String> {
    let mut program = format!(
        "{first}\n#include <stdio.h>\n#include <stddef.h>\n#include \"nccl.h\"\nint main(void) {{\n"
    );
    for line in listed("layout") {
        let mut words = line.split(' ');
        let (structure, member) = (words.next().unwrap(), words.next().unwrap());
        let measure = match member {
            "-" => format!("sizeof({structure})"),
            member => format!("offsetof({structure}, {member})"),
        };
        program += &format!("  printf(\"layout {structure} {member} %zu\\n\", {measure});\n");
    }
    for line in listed("number") {
        let name = line.split(' ').next().unwrap();
        program += &format!("  printf(\"number {name} %lld\\n\", (long long){name});\n");
    }
    program += "}\n";
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program_file) = (out.join(format!("{name}.c")), out.join(name));
    std::fs::write(&source, program).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    let folders = includes.iter().flat_map(|folder| [Path::new("-I"), folder.as_path()]);
    let compiled =
        command.args(folders).arg(&source).arg("-o").arg(&program_file).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let said = Command::new(&program_file).output().unwrap().stdout;
    String::from_utf8(said).unwrap().lines().map(str::to_owned).collect()
}

fn expected() -> Vec<String> {
    let lines =
        |kind: &'static str| listed(kind).into_iter().map(move |line| format!("{kind} {line}"));
    lines("layout").chain(lines("number")).collect()
}

#[test]
fn structures_and_numbers_are_those_of_nccl() {
    let measured = measured("ours", &[here().join("include")], "");
    assert!(measured.len() > 80);
    assert_eq!(measured, expected());
}

/// The folder of the header that `make setup-nccl` installs.
fn installed() -> Option<PathBuf> {
    let root = here().ancestors().nth(2)?;
    let folder = root.join(".venv/nccl/nvidia/nccl/include");
    folder.join("nccl.h").exists().then_some(folder)
}

#[test]
fn the_list_is_what_the_installed_header_says() {
    let Some(folder) = installed() else {
        eprintln!("skipped: NCCL's package is not installed (make setup-nccl)");
        return;
    };
    let header = std::fs::read_to_string(folder.join("nccl.h")).unwrap();
    assert_eq!(functions(&header), listed_functions());
    // CUDA's headers, as far as NCCL's needs them.
    let cuda = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda");
    std::fs::create_dir_all(&cuda).unwrap();
    let types =
        "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n";
    std::fs::write(cuda.join("cuda_runtime.h"), types).unwrap();
    std::fs::write(cuda.join("cuda_fp16.h"), "").unwrap();
    let measured = measured("theirs", &[folder, cuda], "#include <stdint.h>\n#include <stddef.h>");
    assert_eq!(measured, expected());
}
