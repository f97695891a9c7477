//! How connections of the control plane are secured, for clients and the controller alike.

use std::path::Path;
use std::sync::Arc;

use netsum_identity::Credentials;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::Secured;
use crate::error::ControlError;

/// How connections are secured; the same at both ends.
#[derive(Debug, Clone, Default)]
pub enum Security {
    /// Neither encrypted nor authenticated: whoever reaches the controller's port may do everything.
    #[default]
    Trusted,
    /// TLS 1.3 with certificates on both sides.
    Tls(Arc<Credentials>),
}

impl Security {
    /// With credentials of this folder, if one is given. Errors name the file and the remedy.
    pub fn of_folder(credentials: Option<&Path>) -> Result<Security, ControlError> {
        match credentials {
            None => Ok(Security::Trusted),
            Some(folder) => Ok(Security::Tls(Arc::new(Credentials::open(folder)?))),
        }
    }

    /// Accepts a reader of a page of metrics: with credentials, any process of the fabric, as whoever has a certificate
    /// may look. The error is a sentence.
    pub async fn accept_reader<S>(&self, connection: S) -> Result<Secured<S>, String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match self {
            Security::Trusted => Ok(Secured::Plain(connection)),
            Security::Tls(credentials) => {
                Secured::accept(connection, credentials.page_server()).await
            }
        }
    }
}
