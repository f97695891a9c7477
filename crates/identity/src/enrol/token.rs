//! Join tokens: a line of text for a new machine.

use std::fmt;
use std::str::FromStr;

use crate::error::IdentityError;
use crate::hex::{hexadecimal, unhexadecimal};
use crate::identity::Role;

/// What a new machine needs to get its certificate: `ROLE,ADDRESS,FINGERPRINT,SECRET`. Whoever has it, until it is
/// used or expires, can get a certificate of that role.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    role: Role,
    address: String,
    fingerprint: [u8; 32],
    secret: [u8; 16],
}

impl JoinToken {
    /// A token with a new secret. Error: the address is not `HOST:PORT`.
    pub(super) fn draw(
        role: &Role,
        address: &str,
        fingerprint: [u8; 32],
    ) -> Result<JoinToken, IdentityError> {
        if !is_address(address) {
            return Err(IdentityError::NotGranted(format!(
                "{address:?} is not an address; write HOST:PORT, where `netsum ca serve` will listen"
            )));
        }
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(|error| IdentityError::Making {
            what: "a secret",
            reason: error.to_string(),
        })?;
        Ok(JoinToken { role: role.clone(), address: address.to_owned(), fingerprint, secret })
    }

    /// The role of the certificate.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Where the authority is served, as `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// SHA-256 of the authority's certificate.
    pub(super) fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    pub(super) fn secret(&self) -> &[u8; 16] {
        &self.secret
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fingerprint, secret) = (hexadecimal(&self.fingerprint), hexadecimal(&self.secret));
        write!(f, "{},{},{fingerprint},{secret}", self.role, self.address)
    }
}

/// Without the secret.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}, {})", self.role, self.address)
    }
}

impl FromStr for JoinToken {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<JoinToken, IdentityError> {
        parse(text).ok_or_else(|| {
            IdentityError::NotGranted(
                "this is not a join token; copy the whole line that `netsum ca token` has printed"
                    .to_owned(),
            )
        })
    }
}

fn parse(text: &str) -> Option<JoinToken> {
    let parts: Vec<&str> = text.trim().splitn(5, ',').collect();
    let [role, address, fingerprint, secret] = parts[..] else { return None };
    Some(JoinToken {
        role: role.parse().ok()?,
        address: Some(address).filter(|address| is_address(address))?.to_owned(),
        fingerprint: unhexadecimal(fingerprint)?.try_into().ok()?,
        secret: unhexadecimal(secret)?.try_into().ok()?,
    })
}

fn is_address(text: &str) -> bool {
    let good = |c: char| c.is_ascii_graphic() && c != ',';
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    text.len() <= ADDRESS_MAX
        && text.chars().all(good)
        && port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// The longest DNS name, with a port.
const ADDRESS_MAX: usize = 260;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_written_and_other_texts_are_refused() {
        let role: Role = "host/h0".parse().unwrap();
        let token = JoinToken::draw(&role, "[2001:db8::1]:7709", [7; 32]).unwrap();
        let text = token.to_string();
        assert_eq!(format!(" {text}\n").parse::<JoinToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(text.rsplit(',').next().unwrap()));
        for damaged in [
            text[..text.len() - 1].to_owned(),
            format!("{text},"),
            text.replace("host/h0", "host/"),
            text.replace(":7709", ":0"),
            text.replace("0707", "07x7"),
            "x".repeat(1 << 20),
            String::new(),
        ] {
            let error = damaged.parse::<JoinToken>().unwrap_err().to_string();
            assert!(error.contains("copy the whole line"), "{error}");
        }
        for address in ["h0", ":1", "h0:x", "h,0:1", "h 0:1"] {
            assert!(JoinToken::draw(&role, address, [7; 32]).is_err(), "{address}");
        }
    }
}
