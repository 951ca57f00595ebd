package pinboard

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard/passport"
)

// Environment is what the standalone server reads from environment variables.
type Environment struct {
	// Options is complete but for Redis, Metrics and the loggers.
	Options Options
	// Redis says how to reach the Redis of REDIS_URL; nil for "memory:", when
	// Options.Store is set.
	Redis *rueidis.ClientOption
	// Port is the TCP port to listen on; 0 picks a free one.
	Port uint16
	// MaxConnections is how many connections of clients may be open at once.
	// Default 0: 20,000, or as many as the process has files for, at two for
	// each.
	MaxConnections int
	// MaxConnectionsPerAddress is how many of them one address may have, or one
	// /64 of IPv6; Options.TrustedProxies may have all. Default 0: an eighth of them.
	MaxConnectionsPerAddress int
	// CertFile and KeyFile are PEM files to serve TLS with; "" for plain HTTP.
	CertFile, KeyFile string
	// H2C takes HTTP/2 without TLS from clients that begin with it.
	H2C bool
	// MetricsAddr is the TCP address, host:port, of a listener of its own that
	// tells the metrics at /metrics, to anybody; "" for none.
	MetricsAddr string
	// AccessLog writes the access log to standard output.
	AccessLog bool
	// ShutdownDelay is how long a server that is told to stop goes on serving the
	// connections that there are, and tells clients that they end, before it ends them.
	ShutdownDelay time.Duration
}

// maxShutdownDelay leaves some of the 20 s of a shutdown for the requests that are left.
const maxShutdownDelay = 15 * time.Second

// ReadEnvironment reads the variables of the standalone server with lookup,
// usually os.LookupEnv:
//
//	PINBOARD_PASSPORT                 required: the passport document (package passport)
//	REDIS_URL                         required: memory:, redis://…, rediss://…
//	PORT                              default 8080
//	PINBOARD_LEASE_TTL_MS             default 15000
//	PINBOARD_PLACEMENT_HOLD_MS        default 0: off
//	PINBOARD_MAX_HELD                 default 1000
//	PINBOARD_MAX_HELD_PER_ID          default 100
//	PINBOARD_REPLAY_BUFFER            default 65536
//	PINBOARD_KEY_PREFIX               default pinboard
//	PINBOARD_SHARDS                   default 1
//	PINBOARD_DRAIN_RATE               default 0: all at once
//	PINBOARD_AFFINITY_BALANCE_FACTOR  default 2
//	PINBOARD_TRUSTED_PROXIES          comma-separated CIDRs, default none
//	PINBOARD_TLS_CERT, _TLS_KEY       PEM files, default none: plain HTTP
//	PINBOARD_H2C                      true or false, default false
//	PINBOARD_METRICS_ADDR             host:port or :port, default none
//	PINBOARD_ACCESS_LOG               true or false, default false
//	PINBOARD_ACCESS_LOG_SAMPLE        default 1: each request
//	PINBOARD_SHUTDOWN_DELAY_MS        default 1000
//
// and one for each of Limits, and for the connections of Environment, with their
// defaults: docs/operating.md and docs/monitoring.md list them.
//
// REDIS_URL takes user, password and database as usual. Several hosts,
// separated by commas, are nodes of one Redis Cluster, or Sentinels if the
// parameter master_set names a master; sentinel_user and sentinel_password are
// for those, user and password for the master. What is no letter or digit in one of
// these is percent-encoded. The error joins one error for each
// wrong variable; each names it and is one line without secrets.
func ReadEnvironment(lookup func(string) (string, bool)) (Environment, error) {
	r := reader{lookup: lookup}
	var env Environment
	env.Options.Passport = r.passport("PINBOARD_PASSPORT")
	env.Redis, env.Options.Store = r.redis("REDIS_URL")
	env.Port = uint16(r.number("PORT", 8080, 0, math.MaxUint16))
	lease := r.number("PINBOARD_LEASE_TTL_MS", 15_000, float64(minLease.Milliseconds()), float64(maxLease.Milliseconds()))
	env.Options.LeaseTTL = time.Duration(lease) * time.Millisecond
	hold := r.number("PINBOARD_PLACEMENT_HOLD_MS", 0, 0, float64(maxHold.Milliseconds()))
	env.Options.PlacementHold = time.Duration(hold) * time.Millisecond
	env.Options.MaxHeld = int(r.number("PINBOARD_MAX_HELD", 0, 1, maxHeld))
	env.Options.MaxHeldPerID = int(r.number("PINBOARD_MAX_HELD_PER_ID", 0, 1, maxHeld))
	if most := cmp.Or(env.Options.MaxHeld, defaultHeld); env.Options.MaxHeldPerID > most {
		r.fault("PINBOARD_MAX_HELD_PER_ID", "is %d, must be at most PINBOARD_MAX_HELD, which is %d", env.Options.MaxHeldPerID, most)
	}
	env.Options.ReplayBuffer = int(r.number("PINBOARD_REPLAY_BUFFER", 0, 1, maxReplay))
	env.Options.KeyPrefix = r.keyPrefix("PINBOARD_KEY_PREFIX")
	env.Options.Shards = int(r.number("PINBOARD_SHARDS", 1, 1, maxShards))
	env.Options.DrainRate = r.drainRate("PINBOARD_DRAIN_RATE")
	env.Options.Affinity.BalanceFactor = r.fraction("PINBOARD_AFFINITY_BALANCE_FACTOR", 2, 1, 1e9)
	env.Options.TrustedProxies = r.prefixes("PINBOARD_TRUSTED_PROXIES")
	r.limits(&env.Options.Limits)
	env.MaxConnections = int(r.number("PINBOARD_MAX_CONNECTIONS", 0, 1, maxRequests))
	env.MaxConnectionsPerAddress = int(r.number("PINBOARD_MAX_CONNECTIONS_PER_ADDRESS", 0, 1, maxRequests))
	env.CertFile, env.KeyFile = r.files("PINBOARD_TLS_CERT", "PINBOARD_TLS_KEY")
	env.H2C = r.flag("PINBOARD_H2C")
	env.MetricsAddr = r.address("PINBOARD_METRICS_ADDR")
	env.AccessLog = r.flag("PINBOARD_ACCESS_LOG")
	env.Options.AccessLogSample = int(r.number("PINBOARD_ACCESS_LOG_SAMPLE", 1, 1, maxSample))
	delay := r.number("PINBOARD_SHUTDOWN_DELAY_MS", 1000, 0, float64(maxShutdownDelay.Milliseconds()))
	env.ShutdownDelay = time.Duration(delay) * time.Millisecond
	if env.H2C && env.CertFile != "" {
		r.fault("PINBOARD_H2C", "is HTTP/2 without TLS, and PINBOARD_TLS_CERT asks for TLS, which has HTTP/2 anyway")
	}
	return env, errors.Join(r.faults...)
}

// reader reads variables and collects what is wrong with them.
type reader struct {
	lookup func(string) (string, bool)
	faults []error
}

func (r *reader) fault(name, format string, args ...any) {
	line := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	r.faults = append(r.faults, fmt.Errorf("%s: %s", name, line))
}

// text returns a variable without surrounding white space; an empty one counts
// as not set.
func (r *reader) text(name string) (string, bool) {
	value, _ := r.lookup(name)
	value = strings.TrimSpace(value)
	return value, value != ""
}

func (r *reader) keyPrefix(name string) string {
	prefix, _ := r.text(name)
	if strings.ContainsAny(prefix, "{}") {
		r.fault(name, "must not have braces")
	}
	return prefix
}

func (r *reader) passport(name string) passport.Passport {
	text, ok := r.text(name)
	if !ok {
		r.fault(name, "is required: a JSON document that says who may call, see docs/passport.md")
		return nil
	}
	p, err := passport.Parse([]byte(text), r.lookup)
	if err != nil {
		r.fault(name, "%v", err)
		return nil
	}
	return p
}

func (r *reader) redis(name string) (*rueidis.ClientOption, *Store) {
	text, ok := r.text(name)
	switch {
	case !ok:
		r.fault(name, "is required: redis://HOST:PORT, or memory: for a single node that forgets on restart")
		return nil, nil
	case text == "memory:":
		return nil, MemoryStore()
	}
	option, err := parseRedisURL(text)
	if err != nil {
		r.fault(name, "%v", err)
		return nil, nil
	}
	return option, nil
}

// number reads a whole number.
func (r *reader) number(name string, standard, low, high float64) float64 {
	f := r.fraction(name, standard, low, high)
	if f != math.Trunc(f) {
		r.fault(name, "is %v, must be a whole number", f)
		return standard
	}
	return f
}

func (r *reader) fraction(name string, standard, low, high float64) float64 {
	text, ok := r.text(name)
	if !ok {
		return standard
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= low && f <= high) {
		r.fault(name, "is %q, must be a number from %s to %s", text, plain(low), plain(high))
		return standard
	}
	return f
}

// drainRate reads Options.DrainRate; 0 is no rate.
func (r *reader) drainRate(name string) float64 {
	if f := r.fraction(name, 0, 0, maxDrainRate); f == 0 || f >= minDrainRate {
		return f
	}
	r.fault(name, "must be 0 or a number from %s to %s", plain(minDrainRate), plain(maxDrainRate))
	return 0
}

func plain(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func (r *reader) prefixes(name string) (out []netip.Prefix) {
	text, _ := r.text(name)
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(entry)
		if addr, addrErr := netip.ParseAddr(entry); addrErr == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			r.fault(name, "%q is neither an address nor a CIDR such as 10.0.0.0/8", entry)
			continue
		}
		out = append(out, prefix.Masked())
	}
	return out
}

// files reads the names of two files that need each other.
func (r *reader) files(one, other string) (string, string) {
	first, ok := r.text(one)
	second, too := r.text(other)
	switch {
	case ok && !too:
		r.fault(other, "is required with %s", one)
	case too && !ok:
		r.fault(one, "is required with %s", other)
	}
	return first, second
}

// address reads host:port, where there need not be a host.
func (r *reader) address(name string) string {
	text, ok := r.text(name)
	if !ok {
		return ""
	}
	_, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		r.fault(name, "is %q, must be an address to listen on such as :9090 or 127.0.0.1:9090", text)
	}
	return text
}

func (r *reader) flag(name string) bool {
	text, ok := r.text(name)
	if ok && text != "true" && text != "false" {
		r.fault(name, "is %q, must be true or false", text)
	}
	return text == "true"
}
