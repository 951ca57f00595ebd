package worker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/resources"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Options configure a Worker. PinboardURL, Token and AdvertiseURL are required,
// here or in the environment; every other zero value means its default.
type Options struct {
	// PinboardURL is where pinboard answers, a base path included:
	// http://pinboard:8080. Default: the variable PINBOARD_URL.
	PinboardURL string
	// Token is the credential for pinboard's registry. It is never printed.
	// Default: the variable PINBOARD_TOKEN.
	Token Token
	// AdvertiseURL is where every node of pinboard reaches this very process,
	// not a balancer in front of several. A base path in it is taken off the
	// requests, unless http.StripPrefix has done so. Default: the variable
	// ADVERTISE_URL.
	AdvertiseURL string

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
	// A lease of pinboard's that is not longer than LeaseBuffer and
	// HeartbeatInterval together makes that permanent; it is logged. Default 5 s.
	LeaseBuffer time.Duration

	// IdleTimeout is how long an instance that nothing holds is kept.
	// Default 300 s.
	IdleTimeout time.Duration
	// DetachedTimeout is how long Instance.Go may hold an instance that has
	// no request and no open connection. Default 24 h.
	DetachedTimeout time.Duration
	// DrainDeadline is how long ListenAndServe lets instances work after it
	// was told to end, before they are aborted. Default 30 s.
	DrainDeadline time.Duration
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

	// OnLeaseUnhealthy is called when no heartbeat was accepted in time and new
	// ids are refused from now on, OnLeaseRestored when one was again. They
	// must return soon; a panic is logged. Default: nothing is called.
	OnLeaseUnhealthy func()
	OnLeaseRestored  func()

	// Logger gets what operators should know. Default: silent.
	Logger *zap.Logger
}

// Token is a credential that no fmt verb, logger or encoder shows.
type Token string

// Format hides the text from every verb.
func (t Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[secret]")) }

// MarshalText hides the text from encoders.
func (t Token) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }

// Names of the environment variables that fill empty options.
const (
	envPinboardURL  = "PINBOARD_URL"
	envToken        = "PINBOARD_TOKEN"
	envAdvertiseURL = "ADVERTISE_URL"
)

// maxInstances is how many ids fit into one registration (protocol §2).
const maxInstances = 100_000

// withDefaults returns a copy in which zero values are replaced. getenv is
// os.Getenv.
func (o Options) withDefaults(getenv func(string) string) Options {
	if o.PinboardURL == "" {
		o.PinboardURL = getenv(envPinboardURL)
	}
	if o.Token == "" {
		o.Token = Token(getenv(envToken))
	}
	if o.AdvertiseURL == "" {
		o.AdvertiseURL = getenv(envAdvertiseURL)
	}
	if o.Headroom == nil {
		o.Headroom = func() float64 { return float64(resources.AvailableMB("/")) }
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	for _, d := range o.durations() {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	for _, n := range o.counts() {
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	return o
}

type setting[T any] struct {
	name     string
	value    *T
	standard T
}

func (o *Options) durations() []setting[time.Duration] {
	return []setting[time.Duration]{
		{"HeartbeatInterval", &o.HeartbeatInterval, 3 * time.Second},
		{"LeaseBuffer", &o.LeaseBuffer, 5 * time.Second},
		{"IdleTimeout", &o.IdleTimeout, 300 * time.Second},
		{"DetachedTimeout", &o.DetachedTimeout, 24 * time.Hour},
		{"DrainDeadline", &o.DrainDeadline, 30 * time.Second},
		{"CloseTimeout", &o.CloseTimeout, 10 * time.Second},
		{"ActivationQueueTimeout", &o.ActivationQueueTimeout, time.Second},
	}
}

func (o *Options) counts() []setting[int] {
	return []setting[int]{
		{"MaxInstances", &o.MaxInstances, 10_000},
		{"MaxConcurrentActivations", &o.MaxConcurrentActivations, 32},
	}
}

// validate brings the URLs into their normal form and returns everything that
// is wrong with options that have defaults. No error holds a URL or the token.
func (o *Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("worker: Options."+format, args...))
	}
	for _, u := range []struct {
		name, variable string
		value          *string
	}{
		{"PinboardURL", envPinboardURL, &o.PinboardURL},
		{"AdvertiseURL", envAdvertiseURL, &o.AdvertiseURL},
	} {
		if *u.value == "" {
			fault("%s (%s) is required", u.name, u.variable)
			continue
		}
		normal, _, err := wire.ParseAdvertiseURL(*u.value)
		if err != nil {
			fault("%s (%s) %w", u.name, u.variable, err)
		}
		*u.value = normal
	}
	if o.Token == "" {
		fault("Token (%s) is required", envToken)
	}
	if strings.ContainsFunc(string(o.Token), func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		fault("Token (%s) must be printable ASCII without white space", envToken)
	}
	for _, d := range o.durations() {
		if *d.value < 0 {
			fault("%s is %v, must be positive", d.name, *d.value)
		}
	}
	for _, n := range o.counts() {
		if *n.value < 0 {
			fault("%s is %d, must be positive", n.name, *n.value)
		}
	}
	if o.MaxInstances > maxInstances {
		fault("MaxInstances is %d, must be at most %d", o.MaxInstances, maxInstances)
	}
	return errors.Join(faults...)
}
