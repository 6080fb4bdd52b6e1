//! A refusal while the body of a request is read, before the request is identified.

use super::Exchange;
use super::changes::note_route;
use super::headers::check_framing;
use super::rejection::Rejection;
use super::stages::Stages;
use crate::route::Route;

impl Stages {
    /// Notes the route of a request that is refused while its body is read, so that its answer is
    /// logged, counted and changed like others of the route.
    #[cold]
    pub fn refuse_at<'c, B, R>(
        &'c self,
        x: &mut Exchange<'c, B, R>,
        route: &'c Route,
        rejection: Rejection,
    ) -> Rejection {
        let (request, downstream) = (&*x.request, x.downstream);
        let path = self.router.routes.read_path(request.uri().path());
        if x.route.is_none()
            && let (Ok(host), Ok(path)) = (check_framing(request), path)
        {
            let head = self.head_of(request, downstream, x.record.client, &host, &path);
            x.route = Some(route);
            note_route(&mut x.record, route, &head, request, downstream);
        }
        // The refusal stays if the changes cannot be made.
        let _ = self.rewrite(x);
        rejection
    }
}
