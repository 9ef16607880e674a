//! `[metrics]`: where Prometheus and probes ask this process.

use std::net::SocketAddr;

use super::raw::RawMetrics;
use super::source::Layers;

/// `[metrics]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetricsConfig {
    /// Where `/metrics`, `/livez` and `/readyz` are served; `None`: nowhere.
    pub address: Option<SocketAddr>,
}

const OFF: &str = "off";

pub(super) fn metrics(raw: RawMetrics, layers: &mut Layers<'_, '_, '_>) -> MetricsConfig {
    let text = layers.scalar("metrics.address", raw.address, OFF.into(), |text: &String| read(text).map(drop));
    MetricsConfig { address: read(&text).ok().flatten() }
}

fn read(text: &str) -> Result<Option<SocketAddr>, String> {
    if text.trim() == OFF {
        return Ok(None);
    }
    let expected = || format!("expected an address and a port such as \"127.0.0.1:9464\", or {OFF:?}, found {text:?}");
    text.trim().parse().map(Some).map_err(|_| expected())
}
