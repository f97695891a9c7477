//! Keys of packets, each for one message authentication code (MAC) or cipher; [`crate::seal`] has the packets' tags.

/// What protects packets: a MAC, or a cipher that authenticates, too. All are computed everywhere; their cost depends on
/// the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Mac {
    /// SipHash-2-4: 64-bit additions, rotations and XORs, which the kernel's instructions for programs have, too.
    #[default]
    SipHash = 0,
    /// AEGIS-128L as a MAC (draft-irtf-cfrg-aegis-aead, section 5.4), of whose 128 bits a packet carries 64. With AES
    /// instructions it takes a fifth of the time of SipHash, without them a multiple.
    Aegis = 1,
    /// A universal hash, finished by SipHash-2-4 ([`nh`](crate::nh)): 64-bit products, of which the low half is enough.
    /// The fastest where there is no AES, and in the kernel. For sealed packets.
    Nh = 2,
    /// AEGIS-128L (draft-irtf-cfrg-aegis-aead, section 2): encrypts payloads and authenticates packets, with a tag of 128
    /// bits.
    AegisAead = 3,
}

impl Mac {
    pub(crate) const ALL: [Mac; 4] = [Mac::SipHash, Mac::Aegis, Mac::Nh, Mac::AegisAead];

    /// The fastest on this processor of those that do not encrypt.
    pub fn fastest() -> Mac {
        if Mac::has_aes() { Mac::Aegis } else { Mac::Nh }
    }

    /// Whether this processor has AES instructions. Without them encryption would take a multiple of the time, which
    /// also depends on the data.
    pub fn has_aes() -> bool {
        has_aes()
    }

    /// Whether it encrypts payloads.
    pub const fn encrypts(self) -> bool {
        matches!(self, Mac::AegisAead)
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

/// A key: that of a job, which the controller alone knows, or one derived from it, of a rank or of a hop and direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JobKey {
    mac: Mac,
    bytes: [u8; 16],
}

impl JobKey {
    /// A key of these bytes, which must not be guessable.
    pub const fn new(mac: Mac, bytes: [u8; 16]) -> JobKey {
        JobKey { mac, bytes }
    }

    /// The same secret for another MAC.
    pub const fn with_mac(self, mac: Mac) -> JobKey {
        JobKey { mac, ..self }
    }

    /// What the key is for.
    pub const fn mac(&self) -> Mac {
        self.mac
    }

    /// The key as bytes for [`JobKey::from_bytes`]: the code of its MAC, and 16 secret ones.
    pub fn to_bytes(self) -> [u8; 17] {
        let mut bytes = [self.mac as u8; 17];
        bytes[1..].copy_from_slice(&self.bytes);
        bytes
    }

    /// A key from bytes; 16 are a key of SipHash. `None`: another length, or an unknown MAC.
    pub fn from_bytes(bytes: &[u8]) -> Option<JobKey> {
        if let Ok(bytes) = bytes.try_into() {
            return Some(JobKey::new(Mac::SipHash, bytes));
        }
        let (&code, secret) = bytes.split_first()?;
        let mac = Mac::ALL.into_iter().find(|mac| *mac as u8 == code)?;
        Some(JobKey::new(mac, secret.try_into().ok()?))
    }

    /// The 16 secret bytes.
    pub const fn secret(&self) -> &[u8; 16] {
        &self.bytes
    }
}

/// Omits the key, so that it does not appear in logs.
impl std::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    #[test]
    fn keys_come_back_from_bytes() {
        for mac in Mac::ALL {
            let key = JobKey::new(mac, SECRET);
            assert!(JobKey::from_bytes(&key.to_bytes()) == Some(key));
        }
        assert!(
            JobKey::from_bytes(&SECRET) == Some(JobKey::new(Mac::SipHash, SECRET)),
            "as written by earlier versions"
        );
        assert!(JobKey::from_bytes(&[4; 17]).is_none() && JobKey::from_bytes(&[0; 18]).is_none());
        assert!(JobKey::from_bytes(&[]).is_none() && JobKey::from_bytes(&[0; 15]).is_none());
    }

    #[test]
    fn keys_do_not_appear_in_logs() {
        assert_eq!(format!("{:?}", JobKey::new(Mac::Aegis, SECRET)), "JobKey(..)");
    }
}
