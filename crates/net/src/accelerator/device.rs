//! The device's socket: registers and lines (docs/accelerator-device.md).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::AcceleratorError;
use super::registers as r;
use crate::udp::Wake;

const IDENTITY: u32 = 0x6e73_756d;
const TABLE_VERSION: u32 = 1;
/// Bytes before a message: kind, port, length as 16 bits.
const HEAD: usize = 4;
/// A simulated device accesses a register within microseconds, but may have to complete some thousand cycles before.
const PATIENCE: Duration = Duration::from_secs(60);

const NET_IN: u8 = 0x01;
const SW_IN: u8 = 0x02;
const WRITE: u8 = 0x03;
const READ: u8 = 0x04;
const NET_OUT: u8 = 0x81;
const SW_OUT: u8 = 0x82;
const VALUE: u8 = 0x83;

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The wire.
    Wire,
    /// The switch chip, for software.
    Chip,
}

/// A frame from the device, and its port.
pub(super) struct Sent {
    pub(super) side: Side,
    pub(super) port: u8,
    pub(super) frame: Vec<u8>,
}

/// Properties of the device, from its registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) lines: usize,
    pub(super) leases: usize,
    pub(super) slots: usize,
    pub(super) buffer_bytes: usize,
}

/// A connected device. Dropping it closes the connection and ends its reading thread.
pub(super) struct Device {
    stream: UnixStream,
    frames: Receiver<Sent>,
    values: Receiver<(u32, u32)>,
    reader: Option<JoinHandle<()>>,
    pub(super) shape: Shape,
}

impl Device {
    /// Connects; `wake` is rung when a frame arrives. Errors: `Connect`, `Unknown`, `Gone`.
    pub(super) fn connect(path: &Path, wake: Arc<Wake>) -> Result<Device, AcceleratorError> {
        let failed = |source| AcceleratorError::Connect { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(failed)?;
        let from = stream.try_clone().map_err(failed)?;
        let ((frame, frames), (value, values)) = (unbounded(), unbounded());
        let reader = std::thread::Builder::new()
            .name("netsum-device".into())
            .spawn(move || {
                if let Err(error) = read(from, &frame, &value, &wake)
                    && error.kind() != io::ErrorKind::UnexpectedEof
                {
                    tracing::error!(%error, "reading from the accelerator failed");
                }
                drop((frame, value));
                wake.ring();
            })
            .map_err(failed)?;
        let shape = Shape { lines: 0, leases: 0, slots: 0, buffer_bytes: 0 };
        let mut device = Device { stream, frames, values, reader: Some(reader), shape };
        let (id, version) = (device.read(r::ID)?, device.read(r::VERSION)?);
        if (id, version) != (IDENTITY, TABLE_VERSION) {
            return Err(AcceleratorError::Unknown { path: path.to_owned(), id, version });
        }
        let (shape, memory) = (device.read(r::SHAPE)?, device.read(r::MEMORY)?);
        device.shape = Shape {
            lines: (shape >> 8 & 0xff) as usize,
            leases: (shape & 0xff) as usize,
            slots: (memory & 0xffff) as usize,
            buffer_bytes: (memory >> 16) as usize,
        };
        Ok(device)
    }

    /// Reads a register.
    pub(super) fn read(&mut self, address: u32) -> Result<u32, AcceleratorError> {
        self.send(READ, 0, &address.to_le_bytes())?;
        match self.values.recv_timeout(PATIENCE) {
            Ok((at, value)) if at == address => Ok(value),
            Ok(_) => Err(AcceleratorError::Gone { what: "it answers what was not asked" }),
            Err(_) => Err(AcceleratorError::Gone { what: "it does not answer" }),
        }
    }

    /// Writes a register.
    pub(super) fn write(&mut self, address: u32, value: u32) -> Result<(), AcceleratorError> {
        let mut body = [0; 8];
        body[..4].copy_from_slice(&address.to_le_bytes());
        body[4..].copy_from_slice(&value.to_le_bytes());
        self.send(WRITE, 0, &body)
    }

    /// Waits until control block and release engine are idle.
    pub(super) fn idle(&mut self) -> Result<(), AcceleratorError> {
        let end = Instant::now() + PATIENCE;
        while self.read(r::STATUS)? != 0 {
            if Instant::now() > end {
                return Err(AcceleratorError::Gone { what: "it does not become idle" });
            }
        }
        Ok(())
    }

    /// Passes a frame that arrives from the wire at `port`.
    pub(super) fn arrive(&mut self, port: u8, frame: &[u8]) -> Result<(), AcceleratorError> {
        self.send(NET_IN, port, frame)
    }

    /// Passes a frame from the switch chip to the wire at `port`.
    pub(super) fn inject(&mut self, port: u8, frame: &[u8]) -> Result<(), AcceleratorError> {
        self.send(SW_IN, port, frame)
    }

    /// The next frame from the device; `None` if there is none. Errors: `Gone`.
    pub(super) fn next(&self) -> Result<Option<Sent>, AcceleratorError> {
        match self.frames.try_recv() {
            Ok(sent) => Ok(Some(sent)),
            Err(crossbeam_channel::TryRecvError::Empty) => Ok(None),
            Err(_) => Err(AcceleratorError::Gone { what: "it closed the connection" }),
        }
    }

    fn send(&mut self, kind: u8, port: u8, body: &[u8]) -> Result<(), AcceleratorError> {
        let gone = |_| AcceleratorError::Gone { what: "it closed the connection" };
        // Longer than any datagram: no packet of a socket is truncated.
        let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
        let [low, high] = length.to_le_bytes();
        let mut message = Vec::with_capacity(HEAD + body.len());
        message.extend_from_slice(&[kind, port, low, high]);
        message.extend_from_slice(&body[..usize::from(length)]);
        self.stream.write_all(&message).map_err(gone)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Dispatches the device's messages until the connection ends.
fn read(
    mut from: UnixStream,
    frames: &Sender<Sent>,
    values: &Sender<(u32, u32)>,
    wake: &Wake,
) -> io::Result<()> {
    loop {
        let mut head = [0; HEAD];
        from.read_exact(&mut head)?;
        let [kind, port, low, high] = head;
        let mut body = vec![0; usize::from(u16::from_le_bytes([low, high]))];
        from.read_exact(&mut body)?;
        let side = match kind {
            NET_OUT => Side::Wire,
            SW_OUT => Side::Chip,
            VALUE => {
                let Some((address, value)) = body.split_first_chunk::<4>() else { continue };
                let Some(value) = value.first_chunk::<4>() else { continue };
                let _ = values.send((u32::from_le_bytes(*address), u32::from_le_bytes(*value)));
                continue;
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a message of no known kind",
                ));
            }
        };
        if frames.send(Sent { side, port, frame: body }).is_err() {
            return Ok(());
        }
        wake.ring();
    }
}
