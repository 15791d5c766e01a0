//! What the host keeps for one VM; the host functions work on it.

use crate::abi::Direction;
use crate::host::{LogLine, Process};
use crate::http::StreamState;
use crate::{Callback, Headers, Host, Level, Plugin, Status, VmOptions};
use std::cell::RefMut;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use wasmi::{Memory, TypedFunc};

/// A root context: one plugin configuration in the VM.
#[derive(Debug)]
pub(crate) struct RootState {
    pub(crate) plugin: Plugin,
    pub(crate) tick_period: Option<Duration>,
    /// `on_done` answered false: waiting for `proxy_done`.
    pub(crate) closing: bool,
    pub(crate) done: bool,
}

/// What a context id stands for.
#[derive(Debug)]
pub(crate) enum Context {
    Root(RootState),
    Stream(Box<StreamState>),
}

/// A call to a cluster that is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCall {
    /// What its answer is for.
    pub token: u32,
    /// The context that made it.
    pub(crate) context: u32,
    /// The cluster.
    pub cluster: String,
    /// Its headers, `:path` and the like among them.
    pub headers: Headers,
    /// When Envoy gives up.
    pub timeout: Duration,
}

/// The data of one VM.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) host: Host,
    pub(crate) name: Rc<str>,
    pub(crate) options: VmOptions,
    pub(crate) memory: Option<Memory>,
    pub(crate) allocate: Option<TypedFunc<u32, u32>>,
    pub(crate) contexts: BTreeMap<u32, Context>,
    pub(crate) callback: Callback,
    /// The context that was called.
    pub(crate) current: u32,
    /// The context that the guest chose to act for; 0 is none.
    pub(crate) effective: u32,
    /// Metrics that this VM has defined. In Envoy an id means nothing to another VM.
    pub(crate) metrics: BTreeSet<u32>,
    /// Some stream has asked to go on.
    pub(crate) resumed: bool,
    pub(crate) random: u64,
    /// Calls that are open.
    pub(crate) calls: Vec<HttpCall>,
    pub(crate) last_call: u32,
    /// Headers and body of the call that has ended, in its callback; none if it failed.
    pub(crate) called: Option<(Headers, Vec<u8>)>,
}

impl Guest {
    pub(crate) fn new(host: &Host, name: Rc<str>, options: VmOptions) -> Self {
        Self {
            host: host.clone(),
            name,
            options,
            memory: None,
            allocate: None,
            contexts: BTreeMap::new(),
            callback: Callback::Initialize,
            current: 0,
            effective: 0,
            metrics: BTreeSet::new(),
            resumed: false,
            random: 0,
            calls: Vec::new(),
            last_call: 0,
            called: None,
        }
    }

    pub(crate) fn process(&self) -> RefMut<'_, Process> {
        self.host.process()
    }

    /// The context that host calls act on.
    pub(crate) fn context_id(&self) -> u32 {
        // A chosen context that is gone counts as none.
        if self.contexts.contains_key(&self.effective) { self.effective } else { self.current }
    }

    pub(crate) fn stream(&mut self) -> Option<&mut StreamState> {
        let id = self.context_id();
        self.stream_of(id)
    }

    pub(crate) fn stream_of(&mut self, id: u32) -> Option<&mut StreamState> {
        match self.contexts.get_mut(&id) {
            Some(Context::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    /// The root context that host calls act on: the one itself, or that of the stream.
    pub(crate) fn root(&mut self) -> Option<&mut RootState> {
        let id = match self.contexts.get(&self.context_id())? {
            Context::Root(_) => self.context_id(),
            Context::Stream(stream) => stream.root,
        };
        match self.contexts.get_mut(&id) {
            Some(Context::Root(root)) => Some(root),
            _ => None,
        }
    }

    pub(crate) fn log(&self, level: Level, text: &[u8]) {
        let mut process = self.process();
        if level >= process.level {
            let text = String::from_utf8_lossy(text).into_owned();
            process.log.push(LogLine { vm: Rc::clone(&self.name), level, text });
        }
    }

    /// The bytes behind an ABI buffer number.
    pub(crate) fn buffer(&mut self, kind: u32) -> Result<&[u8], Status> {
        let callback = self.callback;
        match kind {
            0 | 1 => {
                let direction = if kind == 0 { Direction::Request } else { Direction::Response };
                // Outside its callbacks a body is empty, not missing.
                let stream = self.stream();
                Ok(stream.map(|stream| stream.half(direction).visible()).unwrap_or_default())
            }
            4 if self.called.is_some() => {
                Ok(self.called.as_ref().map(|(_, body)| body.as_slice()).unwrap_or_default())
            }
            6 => Ok(&self.options.vm_configuration),
            7 if callback == Callback::Configure => {
                let root = self.root().ok_or(Status::NotFound)?;
                Ok(&root.plugin.configuration)
            }
            0..=8 => Err(Status::NotFound),
            _ => Err(Status::BadArgument),
        }
    }

    /// A property of the current context.
    pub(crate) fn property(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        if let Some(value) = self.stream().and_then(|stream| stream.property(path)) {
            return Some(value);
        }
        match path {
            b"plugin_vm_id" => Some(self.options.vm_id.clone().into_bytes()),
            b"plugin_name" => self.root().map(|root| root.plugin.name.clone().into_bytes()),
            b"plugin_root_id" => self.root().map(|root| root.plugin.root_id.clone().into_bytes()),
            _ => None,
        }
    }
}
