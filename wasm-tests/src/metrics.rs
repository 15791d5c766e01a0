//! Counters, gauges and histograms of the process, with Envoy's rules.

use crate::{Callback, Status};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MetricKind {
    /// Only grows.
    Counter = 0,
    /// Goes up and down; one for the whole process.
    Gauge = 1,
    /// Keeps every sample here, so that tests can look at them.
    Histogram = 2,
}

/// One metric as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name the guest gave it, without Envoy's `wasmcustom.` prefix.
    pub name: String,
    /// What it is.
    pub kind: MetricKind,
    /// Value of a counter or gauge.
    pub value: u64,
    /// Samples of a histogram, in order.
    pub samples: Vec<u64>,
    /// The callback that defined it first. Envoy keeps a name for ever, so names should be
    /// defined in `Configure` only.
    pub defined_in: Callback,
}

/// All metrics. An id is the position and, as in Envoy, the kind in the two low bits.
#[derive(Debug, Default)]
pub(crate) struct Metrics(pub(crate) Vec<Metric>);

impl Metrics {
    /// The same name and kind are one metric, whichever VM defines them.
    pub(crate) fn define(
        &mut self,
        kind: u32,
        name: &[u8],
        defined_in: Callback,
    ) -> Result<u32, Status> {
        let kind = [MetricKind::Counter, MetricKind::Gauge, MetricKind::Histogram]
            .into_iter()
            .find(|candidate| *candidate as u32 == kind)
            .ok_or(Status::BadArgument)?;
        let name = String::from_utf8_lossy(name);
        let known = self.0.iter().position(|metric| metric.kind == kind && metric.name == name);
        let position = known.unwrap_or_else(|| {
            let name = name.into_owned();
            self.0.push(Metric { name, kind, value: 0, samples: Vec::new(), defined_in });
            self.0.len() - 1
        });
        Ok((position as u32 + 1) << 2 | kind as u32)
    }

    fn metric(&mut self, id: u32) -> Result<&mut Metric, Status> {
        let position = (id >> 2).checked_sub(1).ok_or(Status::NotFound)?;
        self.0.get_mut(position as usize).ok_or(Status::NotFound)
    }

    pub(crate) fn increment(&mut self, id: u32, offset: i64) -> Result<(), Status> {
        let metric = self.metric(id)?;
        metric.value = match metric.kind {
            MetricKind::Counter if offset > 0 => metric.value.wrapping_add_signed(offset),
            MetricKind::Gauge => metric.value.wrapping_add_signed(offset),
            MetricKind::Counter | MetricKind::Histogram => return Err(Status::BadArgument),
        };
        Ok(())
    }

    pub(crate) fn record(&mut self, id: u32, value: u64) -> Result<(), Status> {
        let metric = self.metric(id)?;
        match metric.kind {
            MetricKind::Counter => metric.value = metric.value.wrapping_add(value),
            MetricKind::Gauge => metric.value = value,
            MetricKind::Histogram => metric.samples.push(value),
        }
        Ok(())
    }

    pub(crate) fn get(&mut self, id: u32) -> Result<u64, Status> {
        let metric = self.metric(id)?;
        match metric.kind {
            MetricKind::Counter | MetricKind::Gauge => Ok(metric.value),
            MetricKind::Histogram => Err(Status::BadArgument),
        }
    }

    pub(crate) fn find(&self, kind: MetricKind, name: &str) -> Option<&Metric> {
        self.0.iter().find(|metric| metric.kind == kind && metric.name == name)
    }
}
