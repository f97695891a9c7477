//! Compiles the in-kernel switch (hw/xdp), if it is asked for.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_XDP").is_none() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hw/xdp");
    println!("cargo:rerun-if-changed={}", folder.display());
    println!("cargo:rerun-if-env-changed=CLANG");
    for program in ["switch", "bench", "lossy"] {
        compile(&folder.join(format!("{program}.bpf.c")), program);
    }
}

fn compile(source: &Path, program: &str) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    // The kernel's own names of architectures, as libbpf's headers expect them.
    let arch = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    };
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"]);
    command.arg(format!("-D__TARGET_ARCH_{arch}"));
    // Debian keeps <asm/types.h> where only the machine's own compiler looks.
    for entry in std::fs::read_dir("/usr/include").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with("-linux-gnu") {
            command.arg("-I").arg(entry.path());
        }
    }
    command.arg("-c").arg(source).arg("-o").arg(out.join(format!("{program}.o")));
    let advice =
        "install clang and libbpf-dev (`make setup-xdp`), or build without the feature `xdp`";
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} could not compile {}: {status}; {advice}", source.display()),
        Err(error) => panic!("cannot start {clang}: {error}; {advice}"),
    }
}
