//! The certificate of the admission: in a Secret that all replicas share, and known to the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use crate::error::OperatorError;

/// Where the certificate is kept, and for whom.
#[derive(Clone, Debug)]
pub struct Place {
    /// The operator's namespace.
    pub namespace: String,
    /// The Secret; it exists, so that the operator needs no right to make others.
    pub secret: String,
    /// The Service by which the API server calls.
    pub service: String,
    /// The MutatingWebhookConfiguration that names it.
    pub webhook: String,
}

/// The certificate in the Secret, made if there is none or it ends soon, for TLS; and told to the API server.
pub async fn serving(client: &Client, place: &Place) -> Result<Arc<ServerConfig>, OperatorError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &place.namespace);
    let (chain, key) = loop {
        let secret = secrets.get(&place.secret).await;
        let secret = secret.map_err(OperatorError::api(format!("Secret {}", place.secret)))?;
        if let Some(found) = usable(&secret) {
            break found;
        }
        let made = made(secret, &place.host_names())?;
        match secrets.replace(&place.secret, &PostParams::default(), &made).await {
            Ok(_) => tracing::info!(secret = place.secret, "made a certificate for the admission"),
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => {
                return Err(OperatorError::api(format!("Secret {}", place.secret))(error));
            }
        }
    };
    announce(client, &place.webhook, &chain).await?;
    config(&chain, &key)
}

impl Place {
    fn host_names(&self) -> Vec<String> {
        let name = format!("{}.{}.svc", self.service, self.namespace);
        vec![format!("{name}.cluster.local"), name]
    }
}

/// Certificate and key, unless they are missing or end soon.
fn usable(secret: &Secret) -> Option<(ByteString, ByteString)> {
    let ends: i64 = secret.annotations().get(ENDS)?.parse().ok()?;
    if OffsetDateTime::now_utc() + RENEWAL >= OffsetDateTime::from_unix_timestamp(ends).ok()? {
        return None;
    }
    let data = secret.data.as_ref()?;
    Some((data.get(CERTIFICATE)?.clone(), data.get(KEY)?.clone()))
}

/// The Secret with a new certificate that is its own authority.
fn made(mut secret: Secret, names: &[String]) -> Result<Secret, OperatorError> {
    let fail = |error: rcgen::Error| OperatorError::Certificate(error.to_string());
    let key = rcgen::KeyPair::generate().map_err(fail)?;
    let mut parameters = rcgen::CertificateParams::new(names).map_err(fail)?;
    let now = OffsetDateTime::now_utc();
    // Clocks differ.
    parameters.not_before = now - Duration::HOUR;
    parameters.not_after = now + VALIDITY;
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "netsum admission");
    parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let ends = parameters.not_after.unix_timestamp().to_string();
    let certificate = parameters.self_signed(&key).map_err(fail)?;
    secret.annotations_mut().insert(ENDS.to_owned(), ends);
    secret.data = Some(BTreeMap::from([
        (CERTIFICATE.to_owned(), ByteString(certificate.pem().into_bytes())),
        (KEY.to_owned(), ByteString(key.serialize_pem().into_bytes())),
    ]));
    Ok(secret)
}

/// Makes the API server trust the certificate.
async fn announce(client: &Client, webhook: &str, chain: &ByteString) -> Result<(), OperatorError> {
    let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let what = || OperatorError::api(format!("MutatingWebhookConfiguration {webhook}"));
    let known = all.get(webhook).await.map_err(what())?;
    let hooks = known.webhooks.unwrap_or_default();
    if hooks.iter().all(|hook| hook.client_config.ca_bundle.as_ref() == Some(chain)) {
        return Ok(());
    }
    let hooks: Vec<_> = hooks
        .iter()
        .map(|hook| json!({"name": hook.name, "clientConfig": {"caBundle": chain}}))
        .collect();
    let patch = Patch::Strategic(json!({"webhooks": hooks}));
    all.patch(webhook, &PatchParams::default(), &patch).await.map_err(what())?;
    Ok(())
}

fn config(chain: &ByteString, key: &ByteString) -> Result<Arc<ServerConfig>, OperatorError> {
    let fail = |error: &dyn std::fmt::Display| OperatorError::Certificate(error.to_string());
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain.0).collect();
    let chain = chain.map_err(|error| fail(&error))?;
    let key = PrivateKeyDer::from_pem_slice(&key.0).map_err(|error| fail(&error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    Ok(Arc::new(config.map_err(|error| fail(&error))?))
}

/// Files in the Secret.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Annotation with the end of the certificate, in seconds since 1970.
const ENDS: &str = "netsum.dev/ends";
const VALIDITY: Duration = Duration::days(365);
/// How long before its end a certificate is replaced.
const RENEWAL: Duration = Duration::days(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_serves_until_it_ends_soon() {
        let names = ["netsum-operator.netsum.svc".to_owned()];
        assert_eq!(usable(&Secret::default()), None);
        let mut secret = made(Secret::default(), &names).unwrap();
        let (chain, key) = usable(&secret).unwrap();
        config(&chain, &key).unwrap();
        let soon = (OffsetDateTime::now_utc() + RENEWAL).unix_timestamp().to_string();
        secret.annotations_mut().insert(ENDS.to_owned(), soon);
        assert_eq!(usable(&secret), None);
    }

    #[test]
    fn a_damaged_secret_is_an_error() {
        let broken = ByteString(b"no certificate".to_vec());
        assert!(config(&broken, &broken).is_err());
    }
}
