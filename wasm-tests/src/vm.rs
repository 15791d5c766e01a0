//! A VM and its root contexts, as tests handle them.

use crate::error::Trap;
use crate::machine::Machine;
use crate::{Callback, Error, Headers, Host, HttpCall, Module, Result, Stream};
use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;

/// What Envoy's `vm_config` says.
#[derive(Clone, Debug, Default)]
pub struct VmOptions {
    /// Name space of shared data. VMs with one `vm_id` see the same values.
    pub vm_id: String,
    /// `vm_config.configuration`.
    pub vm_configuration: Vec<u8>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
}

/// One plugin: what becomes a root context.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// `name`.
    pub name: String,
    /// `root_id`.
    pub root_id: String,
    /// `configuration`.
    pub configuration: Vec<u8>,
    /// Without it, pausing at the headers turns the body callbacks off too.
    pub allow_on_headers_stop_iteration: bool,
}

impl<C: Into<Vec<u8>>> From<C> for Plugin {
    /// A plugin set up as our `envoy.yaml` does it.
    fn from(configuration: C) -> Self {
        Self {
            name: "tidegate".to_string(),
            root_id: "tidegate".to_string(),
            configuration: configuration.into(),
            allow_on_headers_stop_iteration: true,
        }
    }
}

/// Names one root context of a [`Vm`]. It stays valid across [`Vm::reload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root(usize);

#[derive(Debug)]
struct Inner {
    host: Host,
    module: Module,
    machine: Machine,
    /// Context ids and plugins; `None` when closed.
    roots: Vec<Option<(u32, Plugin)>>,
    generation: u32,
}

/// One VM, such as a worker has. Clones are handles to the same VM.
#[derive(Clone, Debug)]
pub struct Vm(Rc<RefCell<Inner>>);

impl Vm {
    pub(crate) fn start(
        host: &Host,
        module: &Module,
        name: &str,
        options: crate::VmOptions,
    ) -> Result<Self> {
        let machine = Machine::start(host, module, Rc::from(name), options)?;
        let (host, module) = (host.clone(), module.clone());
        let inner = Inner { host, module, machine, roots: Vec::new(), generation: 0 };
        Ok(Self(Rc::new(RefCell::new(inner))))
    }

    pub(crate) fn machine(&self) -> RefMut<'_, Machine> {
        RefMut::map(self.0.borrow_mut(), |inner| &mut inner.machine)
    }

    /// The machine, if it is still the one that a stream was opened in.
    pub(crate) fn machine_of(&self, generation: u32) -> Result<RefMut<'_, Machine>> {
        if self.0.borrow().generation == generation {
            Ok(self.machine())
        } else {
            Err(Error::misuse("this stream died with its VM"))
        }
    }

    fn context(&self, root: Root) -> Result<u32> {
        let slot = self.0.borrow().roots.get(root.0).cloned().flatten();
        slot.map(|(id, _)| id).ok_or_else(|| Error::misuse("this root context is closed"))
    }

    /// The process that the VM is in.
    pub fn host(&self) -> Host {
        self.0.borrow().host.clone()
    }

    /// Sets a plugin up the way Envoy does: context, `on_vm_start`, `on_configure`. A guest that
    /// answers false gives [`Error::Rejected`], and that root context is of no use any more.
    pub fn configure(&self, plugin: impl Into<Plugin>) -> Result<Root> {
        let root = self.create_root(plugin)?;
        let started = self
            .require(Callback::VmStart, || self.on_vm_start(root))
            .and_then(|()| self.require(Callback::Configure, || self.on_configure(root)));
        if started.is_err() {
            self.forget(root);
        }
        started.map(|()| root)
    }

    fn forget(&self, root: Root) {
        if let Some(slot) = self.0.borrow_mut().roots.get_mut(root.0) {
            *slot = None;
        }
    }

    fn require(&self, callback: Callback, call: impl FnOnce() -> Result<bool>) -> Result<()> {
        let host = self.host();
        let logged = host.process().log.len();
        if call()? {
            return Ok(());
        }
        let log = host.process().log[logged..].iter().map(ToString::to_string).collect();
        Err(Error::Rejected { callback, log })
    }

    /// Only creates the root context.
    pub fn create_root(&self, plugin: impl Into<Plugin>) -> Result<Root> {
        let plugin = plugin.into();
        let id = self.machine().create_root(plugin.clone())?;
        let roots = &mut self.0.borrow_mut().roots;
        roots.push(Some((id, plugin)));
        Ok(Root(roots.len() - 1))
    }

    /// `on_vm_start`: what the guest answered.
    pub fn on_vm_start(&self, root: Root) -> Result<bool> {
        let id = self.context(root)?;
        self.machine().vm_start(id)
    }

    /// `on_configure`, with the plugin's configuration: what the guest answered.
    pub fn on_configure(&self, root: Root) -> Result<bool> {
        let id = self.context(root)?;
        self.machine().configure(id)
    }

    /// The timer of the root context fires. The clock does not move by itself.
    pub fn tick(&self, root: Root) -> Result<()> {
        let id = self.context(root)?;
        self.machine().tick(id)
    }

    /// The calls to clusters that are not answered yet, the oldest first.
    pub fn calls(&self) -> Vec<HttpCall> {
        self.machine().guest().calls.clone()
    }

    /// A call is answered.
    pub fn answer_call(&self, token: u32, status: u32, body: &[u8]) -> Result<()> {
        let headers = Headers::from([(":status", status.to_string().as_str())]);
        self.machine().answer_call(token, Some((headers, body.to_vec())))
    }

    /// A call fails: its time is over, or the connection broke.
    pub fn fail_call(&self, token: u32) -> Result<()> {
        self.machine().answer_call(token, None)
    }

    /// The period that the guest asked for.
    pub fn tick_period(&self, root: Root) -> Result<Option<Duration>> {
        let id = self.context(root)?;
        Ok(self.machine().root(id)?.tick_period)
    }

    /// Takes a root context away, as after a new configuration: `on_done`, and `on_delete` once
    /// the guest agrees. Tells whether it agreed at once.
    pub fn close(&self, root: Root) -> Result<bool> {
        let id = self.context(root)?;
        let agreed = self.machine().close_root(id)?;
        self.forget(root);
        Ok(agreed)
    }

    /// A new stream; its context is created at once.
    pub fn open(&self, root: Root) -> Result<Stream> {
        let parent = self.context(root)?;
        let id = self.machine().open(parent)?;
        Ok(Stream::new(self.clone(), id, self.0.borrow().generation))
    }

    /// A new instance in the place of this one, as `FAIL_RELOAD` makes it: linear memory and open
    /// streams are gone, the root contexts are set up again, the process keeps its shared data.
    pub fn reload(&self) -> Result<()> {
        let mut inner = self.0.borrow_mut();
        let guest = inner.machine.guest();
        let (name, options) = (Rc::clone(&guest.name), guest.options.clone());
        inner.machine = Machine::start(&inner.host, &inner.module, name, options)?;
        inner.generation += 1;
        let plugins = std::mem::take(&mut inner.roots);
        drop(inner);
        for slot in plugins {
            match slot {
                Some((_, plugin)) => {
                    self.configure(plugin)?;
                }
                None => self.0.borrow_mut().roots.push(None),
            }
        }
        Ok(())
    }

    /// Why the VM is dead, if it is.
    pub fn trap(&self) -> Option<Trap> {
        self.machine().trap().cloned()
    }

    /// Pages of 64 KiB that the guest's memory has.
    pub fn memory_pages(&self) -> u64 {
        self.machine().memory_pages()
    }

    /// Fuel that all calls of this instance took together. The same calls take the same fuel on
    /// every machine.
    pub fn fuel_used(&self) -> u64 {
        self.machine().fuel_used
    }

    /// Fuel that the last call took.
    pub fn last_fuel(&self) -> u64 {
        self.machine().last_fuel
    }

    /// The most that one callback may take.
    pub fn set_fuel_limit(&self, fuel: u64) {
        self.machine().fuel_limit = fuel;
    }

    /// The next call of this callback gets only so much fuel, so that it traps somewhere inside;
    /// with 0 it traps at its first instruction.
    pub fn starve(&self, callback: Callback, fuel: u64) {
        self.machine().starve = Some((callback, fuel));
    }
}
