package worker

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/memnet"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// maxIdleCalls is how many connections for calls are kept for later ones.
	maxIdleCalls = 64
	// idleCallTimeout is how long they are kept.
	idleCallTimeout = 30 * time.Second
	// continueTimeout is how long a body is held back for a server that never
	// answers "Expect: 100-continue".
	continueTimeout = 5 * time.Second
	// maxRefusal bounds what is read of a refusal, to keep its connection.
	maxRefusal = 4 << 10

	headerUnseen = "Pinned-Unseen" // see loopback.unseen
)

// loopback serves the worker to its own instances, over connections in memory.
// So net/http is on both sides of a call in process too, and streams, trailers,
// 1xx answers, upgrades and the end of either side are what they are elsewhere.
//
// It needs no attestation: nobody but calls can dial it, and they say who calls.
// Nothing is signed that could be used from elsewhere.
type loopback struct {
	worker *Worker
	// unseen marks the answers to calls that no instance has seen. It is
	// random, because an instance's own answer may have any header.
	unseen string

	listener  *memnet.Listener
	server    *http.Server
	transport *http.Transport

	once    sync.Once // starts the server, at the first call
	running sync.WaitGroup
	conns   sync.WaitGroup // of the server
}

func newLoopback(w *Worker) *loopback {
	l := &loopback{worker: w, unseen: rand.Text(), listener: memnet.NewListener()}
	l.server = &http.Server{
		Handler: http.HandlerFunc(l.serve), ErrorLog: zap.NewStdLog(w.opts.Logger),
		ReadHeaderTimeout: readHeaderTimeout, ConnState: l.count,
	}
	l.transport = &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return l.listener.Dial(ctx) },
		DisableCompression:    true,
		MaxIdleConnsPerHost:   maxIdleCalls,
		IdleConnTimeout:       idleCallTimeout,
		ExpectContinueTimeout: continueTimeout,
	}
	return l
}

// RoundTrip implements http.RoundTripper. It starts the server if need be.
func (l *loopback) RoundTrip(r *http.Request) (*http.Response, error) {
	l.once.Do(func() {
		l.running.Go(func() { _ = l.server.Serve(l.listener) }) // ends with close
	})
	return l.transport.RoundTrip(r)
}

func (l *loopback) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		l.conns.Done()
	}
}

// close ends all connections, and the calls on them. wait must not be set while
// there are instances, whose handlers may not return.
func (l *loopback) close(wait bool) {
	l.once.Do(func() {}) // start nothing any more
	_ = l.listener.Close()
	_ = l.server.Close()
	l.running.Wait()
	l.transport.CloseIdleConnections()
	if wait {
		l.conns.Wait()
	}
}

// serve serves a call.
func (l *loopback) serve(rw http.ResponseWriter, r *http.Request) {
	depth, _ := strconv.Atoi(r.Header.Get(wire.HeaderDepth)) // calls' own
	v := &visit{refuse: l.refuse, own: true, by: &attest.Claims{
		Audience: l.worker.reg.sessionID(), Caller: r.Header.Get(wire.HeaderFrom), Depth: depth,
	}}
	sent, now := oursIn(r.Header, true), l.worker.clock()
	if ref := l.worker.serveAttested(v, &sent, &now, r.URL.EscapedPath(), rw, r); ref != nil {
		l.refuse(ref, rw)
	}
}

// refuse marks what no instance has seen.
func (l *loopback) refuse(ref *refusal, rw http.ResponseWriter) {
	if ref.reason != "" {
		rw.Header().Set(headerUnseen, l.unseen)
		// Else the server would read the body first, which its sender keeps
		// for the next attempt.
		rw.Header().Set("Connection", "close")
	}
	ref.write(rw)
}

// inProcess sends a call to an instance of this worker. refused: the instance
// has not seen it.
func (c *calls) inProcess(out *http.Request, body io.ReadCloser, epoch int64) (res *http.Response, refused bool, err error) {
	call := *out
	call.URL = &url.URL{
		Scheme: "http", Host: clusterHost, Path: out.URL.Path, RawPath: out.URL.RawPath,
		RawQuery: out.URL.RawQuery, ForceQuery: out.URL.ForceQuery,
	}
	call.Header = out.Header.Clone()
	// Pinboard replaces them: they would speak of a client's connection.
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		call.Header.Del(name)
	}
	if epoch > 0 {
		call.Header.Set(wire.HeaderEpoch, strconv.FormatInt(epoch, 10))
	}
	call.Body = body
	res, err = c.loopback.RoundTrip(&call)
	if err != nil {
		return nil, false, err
	}
	return res, res.Header.Get(headerUnseen) == c.loopback.unseen, nil
}

// dropAnswer lets the connection of an answer that nobody wants be used again.
func dropAnswer(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, maxRefusal)
	_ = res.Body.Close()
}
