//! Groups of threads, values that reveal the order of additions, and an oracle.
#![allow(dead_code)]

use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::time::Duration;

use netsum_collective::{Buffer, Dtype, Group, GroupConfig, Network, Options, ReduceOp};
use netsum_net::mesh::Listener;
use netsum_wire::{Encoding, Format, Input, reduce};

const NAME: &[u8] = env!("CARGO_CRATE_NAME").as_bytes();
const TCP: bool = matches!(NAME, [.., b't', b'c', b'p']);
const UCX: bool = matches!(NAME, [.., b'u', b'c', b'x']);

/// Test programs with such names use TCP or UCX.
pub const SHARED_MEMORY: bool = !TCP && !UCX;

/// UCX in programs of that name; TCP if its library is not installed.
pub fn network() -> Network {
    static FOUND: OnceLock<Network> = OnceLock::new();
    if !UCX {
        return Network::Tcp;
    }
    *FOUND.get_or_init(|| match Listener::bind(Ipv4Addr::LOCALHOST.into(), Network::Ucx) {
        Ok(_) => Network::Ucx,
        Err(error) => {
            println!("skipped over UCX, TCP is tested again: {error}");
            Network::Tcp
        }
    })
}

/// Runs this test program again with other transports of UCX, all tests but `but`.
pub fn again_with_transports(transports: &str, but: &str) {
    if network() != Network::Ucx {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--skip", but]).env("UCX_TLS", transports).env("UCX_LOG_LEVEL", "fatal");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "UCX_TLS={transports}: {text}");
}

pub const SOON: Duration = Duration::from_secs(30);

pub fn config(rank: u32, size: u32, name: &str) -> GroupConfig {
    GroupConfig {
        rank,
        size,
        name: name.to_owned(),
        controller: None,
        host: Some("127.0.0.1".to_owned()),
        timeout: Duration::from_secs(20),
        options: Options { shared_memory: SHARED_MEMORY, network: network(), ..Options::default() },
        plan: None,
    }
}

/// Runs `body` on every rank of a group, each in a thread.
pub fn with_group<T: Send>(
    size: u32,
    configure: impl Fn(u32) -> GroupConfig,
    body: impl Fn(u32, &Group) -> T + Sync,
) -> Vec<T> {
    let groups: Vec<Group> = (0..size).map(|rank| Group::new(configure(rank)).unwrap()).collect();
    let addresses: Vec<Vec<u8>> = groups.iter().map(Group::address).collect();
    std::thread::scope(|scope| {
        let run = |(rank, group): (usize, Group)| {
            let (addresses, body) = (&addresses, &body);
            scope.spawn(move || {
                group.connect(addresses).unwrap();
                let result = body(rank as u32, &group);
                group.close();
                result
            })
        };
        let threads: Vec<_> = groups.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn host_group<T: Send>(size: u32, body: impl Fn(u32, &Group) -> T + Sync) -> Vec<T> {
    with_group(size, |rank| config(rank, size, "test"), body)
}

pub fn buffer(bytes: &[u8]) -> Buffer {
    Buffer::from_vec(bytes.to_vec())
}

/// All bytes of all buffers on loan.
pub fn lent(buffers: &mut [Buffer]) -> Vec<Buffer> {
    buffers.iter_mut().map(Buffer::lend_all).collect()
}

pub fn bytes(buffer: &Buffer) -> Vec<u8> {
    buffer.slice(0..buffer.len()).to_vec()
}

/// A rank's values: floats of very different size, so that another order of additions gives other bits.
pub fn values(dtype: Dtype, n: usize, rank: u32, salt: u64) -> Vec<u8> {
    let mut state = (u64::from(rank) << 32 | salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let float = |x: u64| (x as i32 as f64) * 2f64.powi((x >> 40) as i32 % 24 - 40);
    let mut out = Vec::with_capacity(n * dtype.size());
    for _ in 0..n {
        let x = next();
        match dtype {
            Dtype::F32 => out.extend((float(x) as f32).to_le_bytes()),
            Dtype::F64 => out.extend(float(x).to_le_bytes()),
            Dtype::F16 => out.extend(half::f16::from_f64(float(x)).to_le_bytes()),
            Dtype::Bf16 => out.extend(half::bf16::from_f64(float(x)).to_le_bytes()),
            Dtype::Bool => out.push((x & 1) as u8),
            Dtype::I16FromI8 => out.extend(i16::from(x as i8).to_le_bytes()),
            Dtype::Bf16FromE4m3 | Dtype::Bf16FromE5m2 => {
                // Numbers of both types.
                let number = f64::from(x as i32 % 8) * 2f64.powi((x >> 40) as i32 % 14 - 9);
                out.extend(half::bf16::from_f64(number).to_le_bytes());
            }
            other => out.extend(&x.to_le_bytes()[..other.size()]),
        }
    }
    out
}

/// All ranks' values in the balanced order over ranks.
pub fn flat_sum(dtype: Dtype, op: ReduceOp, all: &[Vec<u8>]) -> Vec<u8> {
    let n = all[0].len() / dtype.size();
    let mut inputs = Vec::new();
    for bytes in all {
        inputs.push(Some(Input { bytes, encoding: Encoding::Element }));
    }
    let mut out = vec![0; all[0].len()];
    reduce(Format { dtype, op }, &inputs, n, &mut out, Encoding::Element);
    out
}
