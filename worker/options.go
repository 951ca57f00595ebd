package worker

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// Options configure a Worker. With a PinboardURL, Token and AdvertiseURL are
// required, each here or in the environment; without one, the worker runs in
// local mode. Every other zero value means its default.
type Options struct {
	// PinboardURL is where pinboard answers, a base path included:
	// http://pinboard:8080. Default: the variable PINBOARD_URL, which may be
	// absent but not empty. Absent means local mode: see the package comment.
	PinboardURL string
	// Token is the credential for pinboard's registry. It is never printed.
	// Default: the variable PINBOARD_TOKEN.
	Token Token
	// AdvertiseURL is where every node of pinboard reaches this very process,
	// not a balancer in front of several. A base path in it is taken off the
	// requests, unless http.StripPrefix has done so. Default: the variable
	// ADVERTISE_URL.
	AdvertiseURL string

	// Local asks for local mode, whatever the environment says: no variable is
	// read. It excludes a PinboardURL. That is for tests, which run in any shell.
	// Default false: local mode without a PinboardURL.
	Local bool

	// Hostname binds the namespaces under a host name (protocol §7): requests
	// for that host come here. It is sent in lower case and without a trailing
	// dot. Default: none, for every host without a binding of its own.
	Hostname string
	// Env names the deployment behind the Hostname, which it needs. HostOptions
	// may name another one for a namespace. Default: none.
	Env string
	// Takeover says what becomes of the workers of another Env at the same
	// Hostname and Epoch. Needs a Hostname. Default: as TakeoverDeny.
	Takeover Takeover
	// Epoch is the generation of this deployment: workers of a higher one
	// displace those of lower ones in their namespaces, for good. At least 0,
	// below 2^53. Default 0.
	Epoch int64

	// Transport makes the calls to pinboard. The worker does not close it.
	// Default: a transport of its own that dials pinboard directly, whatever
	// HTTP_PROXY says.
	Transport http.RoundTripper

	// Headroom returns how much more this worker can take, in any unit that
	// all workers of its namespaces share. It is asked before every heartbeat,
	// in a goroutine of its own, never twice at a time, and must return soon:
	// a heartbeat waits for it once, for at most 1 s and at most a third of
	// HeartbeatInterval, and after that takes what came of it until the next
	// one. Shutdown does not wait for it. After a panic, and in place of an
	// answer that is late, negative or not a finite number, the last good one
	// is sent, 0 before there was one. Default: the memory that is available
	// to the process, in whole MB of 2^20 bytes: the least of what is left in
	// each control group (cgroup) around it and on the machine, or 1024 where
	// neither is known, as outside of Linux.
	Headroom func() float64

	// HeartbeatInterval is the time between two heartbeats. Default 3 s.
	HeartbeatInterval time.Duration
	// LeaseBuffer is how long before the end of the lease new ids are refused.
	// Default 5 s.
	LeaseBuffer time.Duration
	// LeaseTTL is the lease time that pinboard is configured with. What counts
	// is what pinboard grants; this is here to find settings that can't work
	// together before they do harm: three heartbeats fit into a lease, and
	// LeaseBuffer and HeartbeatInterval together are shorter. Default: the
	// variable PINBOARD_LEASE_TTL_MS (milliseconds), else 15 s.
	LeaseTTL time.Duration

	// IdleTimeout is how long an instance that nothing holds is kept.
	// Default 300 s.
	IdleTimeout time.Duration
	// KeepPlacementOnIdle keeps the id placed here when its instance ends by
	// idling: its next request activates it here again, at the same epoch.
	// It saves the look for a worker, at the price of a row for every id ever
	// used. Ends of other kinds release the id all the same. Default false.
	KeepPlacementOnIdle bool
	// DetachedTimeout is how long Instance.Go may hold an instance that has
	// no request and no open connection. Default 24 h.
	DetachedTimeout time.Duration
	// DrainDeadline is how long ListenAndServe lets instances work after it
	// was told to end, before they are aborted. Default 30 s.
	DrainDeadline time.Duration
	// DrainRate is how many instances per second a drain of the worker closes,
	// its own or an operator's, so that their next requests do not activate all
	// of them elsewhere at once: those without clients first, then those with
	// open streams. An instance that something holds at its turn closes
	// when that ends. Before a deadline the drain goes as fast as it takes for all
	// turns to come within nine tenths of the time. From 0.001 to 1,000,000.
	// Default: the variable PINBOARD_DRAIN_RATE, else 0: all at once.
	DrainRate float64
	// CloseTimeout bounds the context that the OnClose hooks of one instance
	// share. Default 10 s.
	CloseTimeout time.Duration

	// MaxInstances bounds the instances of all namespaces together. At most
	// 100,000. Default 10,000.
	MaxInstances int
	// MaxConcurrentActivations bounds the constructors that run at one time.
	// They mostly wait for a store, so it may well be more than there are
	// processors; it keeps the ids of a lost worker from all loading at once.
	// Default 32.
	MaxConcurrentActivations int
	// ActivationQueueTimeout is how long a request waits for its constructor
	// to begin, or for an instance that is closing, before it is refused. The
	// constructor itself may take as long as the client waits. Default 1 s.
	ActivationQueueTimeout time.Duration

	// OnUnhealthy is called when no heartbeat was accepted in time and new ids
	// are refused from now on, OnRestored when one was again. They must return
	// soon; a panic is logged. Default: the warning in the log, which there is
	// in any case.
	OnUnhealthy func()
	OnRestored  func()

	// Logger gets what operators should know. Default: silent, but for the
	// warning of local mode, which then goes to standard error.
	Logger *zap.Logger
	// Registerer gets the worker's metrics, from New until a Shutdown has
	// succeeded. Several workers on one registry need labels that tell them
	// apart: prometheus.WrapRegistererWith. Default: nobody sees them.
	Registerer prometheus.Registerer
}

// Takeover is what a registration wants of another deployment's workers
// (protocol §7).
type Takeover string

const (
	// TakeoverDeny: the registration is refused while they live.
	TakeoverDeny Takeover = wire.TakeoverDeny
	// TakeoverWindDown: they are drained, and new placements come here.
	TakeoverWindDown Takeover = wire.TakeoverWindDown
)

// Token is a credential that no fmt verb, logger or encoder shows.
type Token string

// Format hides the text from every verb.
func (t Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[secret]")) }

// MarshalText hides the text from encoders.
func (t Token) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }
