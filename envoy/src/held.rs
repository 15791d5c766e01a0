//! Requests that were read and wait to be admitted: each is let go, or refused,
//! in whatever callback of its VM finds out.

use crate::host::{self, SharedData};
use crate::stream::Open;
use crate::tenant;
use crate::worker::{Instance, Worker};
use std::cell::RefCell;
use std::rc::Rc;
use tidegate::gate::Decision;
use tidegate::request::Api;
use tidegate::tenant::{Admission, Released};

/// What becomes of a held request when it is decided.
pub(crate) struct Held {
    pub(crate) instance: Instance,
    /// What its stream knows of it as well.
    pub(crate) open: Rc<RefCell<Option<Open>>>,
    pub(crate) decision: Decision,
    pub(crate) tenant: String,
    pub(crate) api: Api,
}

/// Decides held requests whose turn it is. `context` is the one of the callback
/// that runs.
pub(crate) fn release(worker: &RefCell<Worker>, context: u32) {
    let released = worker.borrow_mut().gate.poll(host::now(), &mut SharedData);
    let mut elsewhere = false;
    for one in released {
        let id = one.id;
        let held = worker.borrow_mut().held.remove(&id);
        // A stream that is gone has left the queue, so there is one.
        if let (Some(held), Ok(id)) = (held, u32::try_from(id))
            && host::act_for(id)
        {
            elsewhere = true;
            held.decide(one);
        }
    }
    if elsewhere {
        host::act_for(context);
    }
}

impl Held {
    fn decide(self, released: Released) {
        let Self { instance, open, decision, tenant, api } = self;
        let (metrics, headers) = (&instance.metrics, instance.headers());
        metrics.tenants.waited(released.waited);
        let Some(mut one) = open.take() else { return };
        let admission = one.ticket.enter(released.admission);
        metrics.tenants.decided(&tenant, &admission);
        if let Admission::Refused(refusal) = &admission {
            tenant::refuse(refusal, api, &tenant, headers);
            return;
        }
        if let Admission::Admitted(_, standing) = admission {
            one.standing = headers.then_some(standing);
        }
        metrics.opened(&decision);
        open.replace(Some(one));
        host::resume_request();
    }
}
