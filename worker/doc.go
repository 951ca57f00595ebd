// Package worker is the client for service processes: it registers with
// pinboard, keeps the lease alive, and serves the instances that pinboard
// places here, one for each live id.
//
//	w, err := worker.New(worker.Options{})
//	err = w.Host("/counters", newCounter)
//	err = w.ListenAndServe(ctx, ":8000")
//
// # Instances
//
// The first request for an id runs the namespace's constructor; requests that
// arrive meanwhile wait for it. The handler that it returns serves all requests
// for that id. It sees the path behind /<namespace>/<id>, which is "/" when
// there is nothing behind it, and the request without pinboard's own headers;
// CallerFrom tells on whose behalf the request comes.
//
// So an absolute path in an answer leads a client away from the instance, and so do
// http.Redirect, which makes every path absolute, and the redirects of
// http.ServeMux, from /files to /files/. A Location header that is set by hand may
// be relative, such as "files/": docs/workers.md shows how.
//
// An instance lives until nothing holds it for Options.IdleTimeout, and then
// ends unless its OnIdle hook wants otherwise. Requests,
// hijacked connections and Instance.Go hold it. When the worker or the instance
// winds down (a drain, an operator's wind-down), only plain requests and
// Instance.Go hold it, and only until the deadline; a stream does not. A
// response is a stream once it was flushed or has the content type
// text/event-stream; so is a hijacked connection.
//
// A handler that panics costs its request alone: the instance lives on, with whatever
// the handler has left half done, and Instance.Abort ends it. The panic is logged with
// the instance and its stack. The answer is a 500, or breaks off if some of it was sent.
// http.ErrAbortHandler breaks it off without a word, as ever.
//
// HostOptions.Middleware stands before the instances of a namespace: what it
// denies activates nothing. Instance.OnWindDown tells when the instance is to
// end, Instance.WindDown is how it asks for that itself.
//
// An instance closes in this order: no request is let in; Instance.Context and
// the plain requests are cancelled, and waited for; the OnClose hooks run; the
// id is released and pinboard has answered that, for which it has 5 s; only
// then the streams are cancelled and end. So a client whose stream ends, and
// who connects again, finds the next owner. What a handler writes into its
// stream meanwhile is sent at once; what is held back is the stream's end.
//
// # Calls
//
// Instance.Client calls other instances by their paths (protocol §6): in
// process if the id lives on this worker, and else through pinboard, which
// finds or places it. The instance that is called sees who calls and how many
// calls led to it, not the account that the first of them was made for: what it
// must know of that goes into the request. A call ends with the context of its
// request, and when the instance that makes it is released it can begin no
// more. What an in-process target refuses, because it just began to close, goes
// to pinboard, body and all.
//
// # Leases
//
// What is served is bound by the lease (protocol §8): it is counted from when
// the last accepted heartbeat was sent. Shortly before its end nothing new is
// activated; past its end no request is let in, and no response but a stream
// goes on: what a frozen process was about to answer is answered with a 503, and
// what it had begun to answer is cut off, so that it never looks whole.
// Instances survive it, and serve again after the next accepted heartbeat or
// registration, but for those that pinboard has placed elsewhere meanwhile: they
// are aborted, and answer nothing either. Open streams are not cut here:
// pinboard cuts them.
// Work in the background that only the owner of an id may do runs with
// Instance.LeaseContext, which ends with the lease.
//
// # Local mode
//
// Without a PinboardURL, or with Options.Local, there is no registration and no lease: once started, the
// worker serves every id itself, to anybody who reaches it, with the same API
// and the same life cycle. That is for a developer's machine and for tests. It
// says so in a warning. New refuses it with a Token or an AdvertiseURL, and
// where NODE_ENV, ENVIRONMENT or APP_ENV is production or prod, unless
// PINBOARD_ALLOW_DEV_IN_PRODUCTION is 1. Options.Local reads no variable, so that
// a test does not depend on the shell that runs it.
//
// # Refusals
//
// A request that the instance never saw is refused with a 503, Retry-After: 1
// and the reason in Pinned-Refusal. Some reasons give the id up, such as
// capacity and draining (protocol §5): pinboard frees the placement, and the
// worker never serves that placement again, also when another node of pinboard
// does not know yet.
package worker
