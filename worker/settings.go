package worker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/resources"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Names of the environment variables that fill empty options.
const (
	envPinboardURL  = "PINBOARD_URL"
	envToken        = "PINBOARD_TOKEN"
	envAdvertiseURL = "ADVERTISE_URL"
	envLeaseTTL     = "PINBOARD_LEASE_TTL_MS"
	envDrainRate    = "PINBOARD_DRAIN_RATE"
)

const (
	// maxInstances is how many ids fit into one registration (protocol §2).
	maxInstances = 100_000
	// maxEpoch is the highest worker epoch that every JSON reader keeps exact.
	maxEpoch = 1<<53 - 1
	// minDrainRate and maxDrainRate bound DrainRate, per second.
	minDrainRate, maxDrainRate = 0.001, 1e6
)

// environment is the process's: os.LookupEnv.
type environment func(name string) (value string, ok bool)

// withDefaults returns a copy in which zero values are replaced.
func (o Options) withDefaults(env environment) Options {
	for _, v := range []struct {
		name  string
		value *string
	}{
		{envPinboardURL, &o.PinboardURL},
		{envToken, (*string)(&o.Token)},
		{envAdvertiseURL, &o.AdvertiseURL},
	} {
		if *v.value == "" {
			*v.value, _ = env(v.name)
		}
	}
	if o.LeaseTTL == 0 {
		o.LeaseTTL = leaseTTLFrom(env)
	}
	if o.DrainRate == 0 {
		o.DrainRate = drainRateFrom(env)
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
	o.Hostname = strings.ToLower(strings.TrimSuffix(o.Hostname, "."))
	return o
}

// leaseTTLFrom reads the variable that pinboard itself is configured with. A
// value that is wrong is negative, which validate refuses.
func leaseTTLFrom(env environment) time.Duration {
	text, ok := env(envLeaseTTL)
	if !ok || text == "" {
		return 0
	}
	ms, err := strconv.ParseInt(text, 10, 32)
	if err != nil || ms <= 0 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// drainRateFrom reads the variable that pinboard, too, is configured with. A
// value that is wrong is negative, which validate refuses.
func drainRateFrom(env environment) float64 {
	text, _ := env(envDrainRate)
	if text == "" {
		return 0
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return -1
	}
	return rate
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
		{"LeaseTTL (" + envLeaseTTL + ", whole milliseconds)", &o.LeaseTTL, 15 * time.Second},
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

// faults collects everything that is wrong. No error holds a URL or the token.
type faults struct{ errs []error }

func (f *faults) add(format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("worker: Options."+format, args...))
}

// validate brings the URLs into their normal form and returns everything that
// is wrong with options that have defaults.
func (o *Options) validate(env environment) error {
	var f faults
	if o.PinboardURL == "" {
		o.checkLocal(env, &f)
	} else {
		o.checkConnection(&f)
	}
	o.checkBinding(&f)
	timed := true
	for _, d := range o.durations() {
		if *d.value < 0 {
			timed = false
			f.add("%s is not a positive duration", d.name)
		}
	}
	if timed {
		o.checkLease(&f)
	}
	for _, n := range o.counts() {
		if *n.value < 0 {
			f.add("%s is %d, must be positive", n.name, *n.value)
		}
	}
	if o.DrainRate != 0 && !(o.DrainRate >= minDrainRate && o.DrainRate <= maxDrainRate) {
		f.add("DrainRate (%s) must be a number of instances per second from %v to %v", envDrainRate, minDrainRate, int(maxDrainRate))
	}
	if o.MaxInstances > maxInstances {
		f.add("MaxInstances is %d, must be at most %d", o.MaxInstances, maxInstances)
	}
	return errors.Join(f.errs...)
}

// checkConnection checks what a worker of a pinboard needs.
func (o *Options) checkConnection(f *faults) {
	if o.Local {
		f.add("Local is set, and so is PinboardURL")
	}
	for _, u := range []struct {
		name, variable string
		value          *string
	}{
		{"PinboardURL", envPinboardURL, &o.PinboardURL},
		{"AdvertiseURL", envAdvertiseURL, &o.AdvertiseURL},
	} {
		if *u.value == "" {
			f.add("%s (%s) is required with a PinboardURL (%s)", u.name, u.variable, envPinboardURL)
			continue
		}
		normal, _, err := wire.ParseAdvertiseURL(*u.value)
		if err != nil {
			f.add("%s (%s) %w", u.name, u.variable, err)
		}
		*u.value = normal
	}
	if o.Token == "" {
		f.add("Token (%s) is required with a PinboardURL (%s)", envToken, envPinboardURL)
	}
	if strings.ContainsFunc(string(o.Token), func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		f.add("Token (%s) must be printable ASCII without white space", envToken)
	}
}

// checkBinding checks what names a deployment (protocol §7).
func (o *Options) checkBinding(f *faults) {
	if strings.ContainsFunc(o.Hostname, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("/:@?#[]", r)
	}) {
		f.add("Hostname must be a host name in ASCII, without scheme and port")
	}
	if o.Hostname == "" && o.Env != "" {
		f.add("Env needs a Hostname")
	}
	if o.Hostname == "" && o.Takeover != "" {
		f.add("Takeover needs a Hostname")
	}
	if o.Takeover != "" && o.Takeover != TakeoverDeny && o.Takeover != TakeoverWindDown {
		f.add("Takeover must be %q or %q", TakeoverDeny, TakeoverWindDown)
	}
	if o.Epoch < 0 || o.Epoch > maxEpoch {
		f.add("Epoch is %d, must be from 0 to %d", o.Epoch, int64(maxEpoch))
	}
}

// checkLease checks that the times leave room for a healthy lease.
func (o *Options) checkLease(f *faults) {
	if o.LeaseBuffer >= o.LeaseTTL {
		f.add("LeaseBuffer is %v, must be below the lease time LeaseTTL (%s) of %v", o.LeaseBuffer, envLeaseTTL, o.LeaseTTL)
		return
	}
	if o.HeartbeatInterval > o.LeaseTTL/3 {
		f.add("HeartbeatInterval is %v, must be at most a third of the lease time LeaseTTL (%s) of %v",
			o.HeartbeatInterval, envLeaseTTL, o.LeaseTTL)
		return
	}
	if o.LeaseBuffer+o.HeartbeatInterval >= o.LeaseTTL {
		f.add("LeaseBuffer and HeartbeatInterval are %v together, must be below the lease time LeaseTTL (%s) of %v",
			o.LeaseBuffer+o.HeartbeatInterval, envLeaseTTL, o.LeaseTTL)
	}
}
