//! Compiles the protocol between controller, switches and workers, the layout of stores, and the part of etcd's API that
//! the store uses; no installed compiler is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["netsum/control/v1/control.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        // Keys must not appear in logs.
        .skip_debug(["netsum.control.v1.JobKey"])
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        // As on the wire: an absent field has its default.
        .message_attribute(".", "#[serde(default)]")
        .compile_fds(files)?;
    let files = protox::compile(["netsum/store/v1/store.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    let files = protox::compile(["etcd/rpc.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(files)?;
    Ok(())
}
