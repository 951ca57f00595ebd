package pinboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/memory"
	"github.com/pinboard-go/pinboard/internal/store/redis"
	"github.com/pinboard-go/pinboard/passport"
)

// Options configure a Pinboard. Passport and one of Redis and Store are
// required; every other zero value means its default. All nodes of one
// deployment need equal KeyPrefix, Shards and LeaseTTL.
type Options struct {
	// Passport says who is calling and what they may reach. Required.
	Passport passport.Passport

	// Redis is the client of the Redis that holds the directory: 6.2 or newer,
	// standalone, Sentinel or Cluster. The host keeps it: pinboard uses it and
	// never closes it. Either Redis or Store is required.
	Redis rueidis.Client
	// Store holds the directory instead of Redis: see MemoryStore.
	Store *Store
	// KeyPrefix starts all keys in the store. Deployments with different
	// prefixes do not see each other. Not empty, no braces. Default "pinboard".
	KeyPrefix string
	// Shards is the number of parts that each namespace is split into, so that
	// a Redis Cluster can spread one namespace over its nodes. A node with another
	// number than the fleet's serves nothing: to change it, stop all nodes for one
	// lease. From 1 to 1024, default 1.
	Shards int

	// LeaseTTL is how long a worker's session lives without a heartbeat, and
	// so how long an id of a dead worker stays unavailable. Workers beat every
	// 3 s and stop activating 5 s before the end, so anything below 9 s makes
	// the Python client's default settings flap: New warns. At least 100 ms,
	// at most 1 h, default 15 s (protocol §8).
	LeaseTTL time.Duration

	// Affinity says which worker a new id prefers (protocol §9).
	Affinity Affinity

	// Hooks are told what happens to ids and workers. Default: nobody is told.
	Hooks Hooks

	// TracerProvider makes the spans that docs/tracing.md lists; with each request
	// a worker gets the trace context (W3C traceparent) of the span that stands for
	// sending it. Without a provider, or with noop.NewTracerProvider(), there are
	// no spans, and the trace context of clients passes untouched. Default: the
	// process's, otel.GetTracerProvider(), once somebody has set it.
	TracerProvider trace.TracerProvider
	// TraceIDs has spans tell which id they are about, which may be the name of a
	// person. Default false.
	TraceIDs bool

	// TrustedProxies are the addresses of proxies in front of pinboard, whose
	// X-Forwarded-For, -Proto and -Host headers are believed. Default: none.
	TrustedProxies []netip.Prefix

	// ReplayBuffer is how many bytes of a request's body are kept so that the
	// request can be sent to another worker when the first refuses the id
	// (protocol §5). Limits.ReplayBytes bounds all of them together. At most
	// 16 MiB, default 64 KiB.
	ReplayBuffer int

	// PlacementHold is how long a request waits, instead of getting a 503 at
	// once, while its id moves or is in quarantine and no application has seen
	// the request; then it is tried once more, and that answer counts. A
	// request whose body is longer than ReplayBuffer waits only while nothing
	// beyond that was sent. Where the host's server has a WriteTimeout, it has
	// to leave room for this. At most 1 min, default 0: no request waits.
	PlacementHold time.Duration
	// MaxHeld is how many requests may wait at once on this node, half of them of one
	// client address, each with up
	// to ReplayBuffer bytes of its body; the others get their 503 at once. At
	// most 100,000, default 1,000.
	MaxHeld int
	// MaxHeldPerID is how many of them may wait for one id. At most MaxHeld,
	// default 100, or MaxHeld if that is less.
	MaxHeldPerID int

	// DrainRate is how many instances per second an operator's drain with a
	// deadline asks to wind down, of any kind of worker, so that their next
	// requests do not activate all of them elsewhere at once. It goes faster where
	// the deadline is too near for that rate. The worker hears of the drain itself
	// a third of a LeaseTTL before the deadline, and then closes what it can at
	// once. From 0.001 to 1,000,000. Default 0: the worker hears of every drain at
	// once.
	DrainRate float64

	// Limits bound what a node spends on clients and workers. Default: see
	// there.
	Limits Limits

	// DetachStreams has ServeHTTP return as soon as an event stream or a
	// WebSocket of HTTP/1.1 has begun. The stream then goes on without what
	// net/http keeps for a request, and takes a fifth of the memory when idle, or
	// less than a third if it is a WebSocket. To the server and to handlers around
	// pinboard such a request is over: what they count or measure ends there, and
	// contexts that they cancel end nothing. Pinboard's Shutdown ends these streams
	// and waits for them, the server's own does not. Not detached are requests whose
	// context has a deadline; HTTP/2; and event streams whose ResponseWriter is not the
	// server's own, since a handler that compresses or counts would be passed by.
	// docs/operating.md has the rest. Default false.
	DetachStreams bool

	// Transport is the model for connections to workers. It is copied, never used
	// itself. Taken over are its limits; its TLS settings, for workers at https://
	// (RootCAs, this node's certificate); and its DialContext, whose connection is
	// checked to lead to an allowed address before anything is sent. Ignored are
	// Proxy, since workers are dialled directly, DialTLSContext, and what it says
	// of HTTP/2, since workers are spoken to in HTTP/1.1. What is set in Limits
	// goes before what it says, and that before the defaults of Limits. Default: a
	// transport with 1,024 idle connections per worker.
	Transport *http.Transport

	// Logger gets what operators should know. Default: silent.
	Logger *zap.Logger

	// AccessLog gets one line for each request of the data plane, when it has
	// ended: docs/monitoring.md has its fields. No path, query or token of the
	// client's is in it, and of its headers X-Request-Id and the trace alone. Give
	// it an encoder that escapes what clients make up, as zap's JSON encoder does,
	// and no sampling of zap's own, which would drop errors, too. Default: none.
	AccessLog *zap.Logger
	// AccessLogSample is how many requests that went well make one line of the
	// AccessLog; those that were refused, failed or cut are always there. From 1
	// to 1,000,000, default 1: each request is logged.
	AccessLogSample int

	// Metrics is where the node's metrics are registered by New, and taken off
	// by Shutdown: docs/monitoring.md has them all. The names are the same for
	// each Pinboard, so that a second one on one registerer needs labels of its
	// own (prometheus.WrapRegistererWith); New fails otherwise. Collecting them
	// asks the store about the fleet, within 1.5 s and every 5 s at most.
	// Default: none.
	Metrics prometheus.Registerer
}

// Affinity says which worker an id prefers when it is first placed
// (protocol §9). The zero value prefers by client address.
type Affinity struct {
	// Key returns the affinity key of a request: ids with equal keys prefer
	// the same worker. Not ok, or an empty key, means no preference. It gets
	// the client's request as it came, base path included, on the goroutine
	// that serves it, must not read its body or change it, must be safe for
	// concurrent use, and should answer the same when asked again. A panic is
	// logged and means no preference.
	// Default: the client's address.
	Key func(r *http.Request, c Client) (key string, ok bool)
	// BalanceFactor bounds the preference: it holds while the preferred
	// worker's headroom times the factor is at least the best worker's. At
	// least 1, default 2.
	BalanceFactor float64
}

// Client is who sent a request, as far as pinboard knows.
type Client struct {
	// Addr is the client's address: the connection's peer, or what trusted
	// proxies say (Options.TrustedProxies). The zero Addr if there is none.
	Addr netip.Addr
	// Identity is the caller's, nil for an anonymous one and for cluster calls.
	Identity *passport.Identity
}

// Store is a place for the directory other than Redis. Several pinboards may
// share one.
type Store struct{ backend store.Backend }

// MemoryStore returns a store in this process's memory, for development, tests
// and single nodes: a restart forgets all sessions, so that workers register
// anew and placement waits for one lease (protocol §8).
func MemoryStore() *Store { return &Store{backend: memory.New()} }

const (
	minLease  = 100 * time.Millisecond
	maxLease  = time.Hour
	warnLease = 9 * time.Second // the Python client's buffer, and a beat, and time to answer
	maxShards = 1024
	// defaultHeld is MaxHeld where it is not set.
	defaultHeld = 1000
	maxReplay   = 16 << 20
	maxHold     = time.Minute
	maxHeld     = 100_000
	maxSample   = 1_000_000
)

// withDefaults returns a copy in which zero values are replaced.
func (o Options) withDefaults() Options {
	if o.KeyPrefix == "" {
		o.KeyPrefix = "pinboard"
	}
	if o.Shards == 0 {
		o.Shards = 1
	}
	if o.LeaseTTL == 0 {
		o.LeaseTTL = 15 * time.Second
	}
	if o.Affinity.BalanceFactor == 0 {
		o.Affinity.BalanceFactor = 2
	}
	if o.Affinity.Key == nil {
		o.Affinity.Key = clientAddress
	}
	if o.Hooks.Queue == 0 {
		o.Hooks.Queue = standardHookQueue
	}
	if o.ReplayBuffer == 0 {
		o.ReplayBuffer = 64 << 10
	}
	if o.MaxHeld == 0 {
		o.MaxHeld = defaultHeld
	}
	if o.MaxHeldPerID == 0 {
		o.MaxHeldPerID = min(100, o.MaxHeld)
	}
	if o.AccessLogSample == 0 {
		o.AccessLogSample = 1
	}
	o.Limits.fill(o.Transport)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// validate returns everything that is wrong with options that have defaults.
func (o *Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("pinboard: Options."+format, args...))
	}
	if o.Passport == nil {
		fault("Passport is required")
	}
	for _, given := range []struct {
		name  string
		value any
	}{{"Passport", o.Passport}, {"Redis", o.Redis}, {"TracerProvider", o.TracerProvider}, {"Metrics", o.Metrics}} {
		if isNilPointer(given.value) {
			fault("%s is a nil %T: was an error overlooked where it was made?", given.name, given.value)
		}
	}
	switch {
	case o.Redis == nil && o.Store == nil:
		fault("Redis or Store is required")
	case o.Redis != nil && o.Store != nil:
		fault("Redis and Store exclude each other")
	case o.Store != nil && o.Store.backend == nil:
		fault("Store must come from MemoryStore")
	}
	if strings.ContainsAny(o.KeyPrefix, "{}") {
		fault("KeyPrefix %q must not have braces", o.KeyPrefix)
	}
	if o.Shards < 1 || o.Shards > maxShards {
		fault("Shards is %d, must be from 1 to %d", o.Shards, maxShards)
	}
	if o.LeaseTTL < minLease || o.LeaseTTL > maxLease {
		fault("LeaseTTL is %v, must be from %v to %v", o.LeaseTTL, minLease, maxLease)
	}
	if !(o.Affinity.BalanceFactor >= 1) || o.Affinity.BalanceFactor > 1e9 {
		fault("Affinity.BalanceFactor is %v, must be a number of at least 1", o.Affinity.BalanceFactor)
	}
	for i, prefix := range o.TrustedProxies {
		if !prefix.IsValid() {
			fault("TrustedProxies[%d] is not a valid prefix", i)
		}
	}
	if o.ReplayBuffer < 0 || o.ReplayBuffer > maxReplay {
		fault("ReplayBuffer is %d, must be from 0 to %d bytes", o.ReplayBuffer, maxReplay)
	}
	if o.Hooks.Queue < 1 || o.Hooks.Queue > maxHookQueue {
		fault("Hooks.Queue is %d, must be from 1 to %d", o.Hooks.Queue, maxHookQueue)
	}
	if o.PlacementHold < 0 || o.PlacementHold > maxHold {
		fault("PlacementHold is %v, must be from 0 to %v", o.PlacementHold, maxHold)
	}
	if o.MaxHeld < 0 || o.MaxHeld > maxHeld {
		fault("MaxHeld is %d, must be from 1 to %d", o.MaxHeld, maxHeld)
	} else if o.MaxHeldPerID < 0 || o.MaxHeldPerID > o.MaxHeld {
		fault("MaxHeldPerID is %d, must be from 1 to MaxHeld, which is %d", o.MaxHeldPerID, o.MaxHeld)
	}
	if o.DrainRate != 0 && !(o.DrainRate >= minDrainRate && o.DrainRate <= maxDrainRate) {
		fault("DrainRate is %v, must be 0 or a number from %v to %v", o.DrainRate, minDrainRate, int(maxDrainRate))
	}
	if o.AccessLogSample < 1 || o.AccessLogSample > maxSample {
		fault("AccessLogSample is %d, must be from 1 to %d", o.AccessLogSample, maxSample)
	}
	o.Limits.check(fault)
	return errors.Join(faults...)
}

// isNilPointer reports whether an interface, which is not nil, holds a pointer that is.
func isNilPointer(value any) bool {
	v := reflect.ValueOf(value)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// open returns the directory that the options name.
func (o *Options) open() store.Store {
	cfg := store.Config{Prefix: o.KeyPrefix, LeaseTTL: o.LeaseTTL, Shards: o.Shards}
	if o.Redis != nil {
		return redis.New(o.Redis).Open(cfg)
	}
	return o.Store.backend.Open(cfg)
}

func clientAddress(_ *http.Request, c Client) (string, bool) {
	return c.Addr.String(), c.Addr.IsValid()
}
