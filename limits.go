package pinboard

import (
	"fmt"
	"net/http"
	"time"
)

// Limits bound what one node spends on others: clients, workers, and whoever
// claims to be one. Zero values mean the defaults, which suit a node on the open
// internet. All of them count per node, and what they refuse may be tried again
// or elsewhere. docs/operating.md has them in one table.
type Limits struct {
	// URLBytes is the longest request target; longer ones are a 414. At most
	// 1 MiB, default 16 KiB.
	URLBytes int
	// HeaderBytes is the largest header of a request, names and values
	// together; larger ones are a 431. The host's http.Server has a limit of
	// its own, MaxHeaderBytes, which comes first. At most 16 MiB, default
	// 64 KiB, which is what uvicorn takes.
	HeaderBytes int
	// HeaderLines is the highest number of lines in the header of a request;
	// more are a 431. At most 10,000, default 200.
	HeaderLines int
	// BodyBytes is the longest body of a request to a worker; longer ones are a
	// 413, or end the request if part was sent. Bodies are streamed, so that
	// their length costs no memory here. Default 0: no limit.
	BodyBytes int64
	// BodyPause is how long a client may let a worker wait for the next byte of
	// a request's body; then the request is a 408. It counts until the answer
	// begins. From 100 ms to 24 h, default 1 min.
	BodyPause time.Duration
	// WritePause is how long one piece of what is sent, at most 32 KiB, may wait
	// for its reader, client or worker; then the connection is cut. Of a long
	// answer it is at most 256 KiB where the pieces before went at 640 KiB a
	// second or more, into buffers on the way too. A stream that has nothing to
	// send waits for nobody. From 100 ms to 24 h, default 1 min.
	WritePause time.Duration
	// Silence is how long an answer or a WebSocket may go on without a byte;
	// then it is cut, the WebSocket with close code 1012. Set it above the
	// pings of the applications. Default 0: for ever, for streams may be silent
	// for long. Up to 24 h.
	Silence time.Duration

	// Requests is how many requests, streams and WebSockets may be open on the
	// data plane at once; others are a 503. At most 10 million, default 20,000.
	Requests int
	// RequestsPerAddress is how many of them one client address may have, or
	// one /64 of IPv6; others are a 429. Behind a balancer that is not in
	// TrustedProxies all clients have one address. Default half of Requests.
	RequestsPerAddress int
	// RequestsPerID is how many of them one instance may have; others are a
	// 503. One client address, or one /64 of IPv6, has half of that at most; more
	// are a 429. Default half of Requests.
	RequestsPerID int
	// PlacementsPerAddress is how many new ids one client address, or one /64 of
	// IPv6, may have placed in a minute; others are a 429, ids that have an
	// owner are served. Set it where a namespace is open to anybody: each new id
	// is an instance on a worker. At most 10 million, default 0: no limit.
	PlacementsPerAddress int
	// ReplayBytes bounds what all ReplayBuffers hold together. Bodies beyond it
	// are sent all the same, but cannot be sent a second time. At most 1 TiB,
	// default 64 MiB.
	ReplayBytes int64

	// DialTimeout bounds how long connecting to a worker takes, also with a
	// DialContext of Transport's; then the request is a 503. From 10 ms to 1 h,
	// default 2 s.
	DialTimeout time.Duration
	// TLSTimeout bounds the handshake with a worker; then the request is a 503.
	// From 10 ms to 1 h, default Transport's TLSHandshakeTimeout, or 5 s.
	TLSTimeout time.Duration
	// AnswerTimeout is how long a worker that has got all of a request may take
	// to begin its answer, and also how long it may leave a request unread; then
	// the request is a 504. Long polls wait that long. An informational answer
	// (1xx) begins the time anew. From 10 ms to 24 h, default Transport's
	// ResponseHeaderTimeout, or 10 min.
	AnswerTimeout time.Duration
	// UpgradeTimeout is AnswerTimeout for WebSockets. From 10 ms to 24 h,
	// default 1 min.
	UpgradeTimeout time.Duration
	// AnswerHeaderBytes is the largest header of a worker's answer; larger ones
	// are a 502. At most 16 MiB, default Transport's MaxResponseHeaderBytes, or
	// 64 KiB.
	AnswerHeaderBytes int64
	// Informational is how many informational answers (1xx) a worker may send
	// ahead of one answer; more are a 502. At most 1 million, default 1,000.
	Informational int

	// Registrations is how many workers may be registering at once; others are
	// a 503 after a second. At most 100,000, default 256.
	Registrations int
	// RegistrationsPerKey is how many of them one credential may have. Default
	// half of Registrations.
	RegistrationsPerKey int
	// Probes is how many heartbeats may probe their workers at once. Others are
	// answered without a probe, and nothing changes about whether the worker is
	// degraded. At most 100,000, default 1,000.
	Probes int
	// ProbesPerKey is how many of them one credential may have. Default half of
	// Probes.
	ProbesPerKey int
	// RegistryBytes bounds the bodies of workers' calls together, by what they
	// say is their length, but for those of up to 64 KiB; others are a 503 after
	// a second. One credential has half of that at most, or 32 MiB if that is more.
	// From 32 MiB to 1 TiB, default 128 MiB.
	RegistryBytes int64
	// Instances is how many live ids a worker may register with; more are a
	// 400. At most 10 million, default 250,000.
	Instances int
}

// limit is one field of Limits.
type limit struct {
	field    string
	variable string // that the standalone server reads; durations are in ms
	value    any    // *int, *int64 or *time.Duration
	standard int64
	// low and high are what it may be, but for a zero standard.
	low, high int64
}

const (
	kib = 1 << 10
	mib = 1 << 20
	tib = 1 << 40

	day = 24 * time.Hour

	maxRequests = 10_000_000
	// smallBody is how long a body of a worker's call may be without counting.
	smallBody = 64 * kib
)

// fields returns all limits, those first whose standards others depend on.
func (l *Limits) fields(model *http.Transport) []limit {
	if model == nil {
		model = &http.Transport{}
	}
	count := func(field, variable string, value *int, standard, high int) limit {
		return limit{field, variable, value, int64(standard), 1, int64(high)}
	}
	size := func(field, variable string, value *int64, standard, low, high int64) limit {
		return limit{field, variable, value, standard, low, high}
	}
	span := func(field, variable string, value *time.Duration, standard, low, high time.Duration) limit {
		return limit{field, variable, value, int64(standard), int64(low), int64(high)}
	}
	given := func(value, standard time.Duration) time.Duration {
		if value > 0 {
			return value
		}
		return standard
	}
	answerHeader := int64(64 * kib)
	if model.MaxResponseHeaderBytes > 0 {
		answerHeader = model.MaxResponseHeaderBytes
	}
	least := 10 * time.Millisecond
	half := func(value *int, standard int) int {
		if *value != 0 {
			standard = *value
		}
		return max(1, standard/2)
	}
	return []limit{
		count("URLBytes", "PINBOARD_MAX_URL_BYTES", &l.URLBytes, 16*kib, mib),
		count("HeaderBytes", "PINBOARD_MAX_HEADER_BYTES", &l.HeaderBytes, 64*kib, 16*mib),
		count("HeaderLines", "PINBOARD_MAX_HEADER_LINES", &l.HeaderLines, 200, 10_000),
		size("BodyBytes", "PINBOARD_MAX_BODY_BYTES", &l.BodyBytes, 0, 0, 1<<62),
		span("BodyPause", "PINBOARD_BODY_PAUSE_MS", &l.BodyPause, time.Minute, 100*time.Millisecond, day),
		span("WritePause", "PINBOARD_WRITE_PAUSE_MS", &l.WritePause, time.Minute, 100*time.Millisecond, day),
		span("Silence", "PINBOARD_SILENCE_MS", &l.Silence, 0, 0, day),
		count("Requests", "PINBOARD_MAX_REQUESTS", &l.Requests, 20_000, maxRequests),
		count("RequestsPerAddress", "PINBOARD_MAX_REQUESTS_PER_ADDRESS", &l.RequestsPerAddress, half(&l.Requests, 20_000), maxRequests),
		count("RequestsPerID", "PINBOARD_MAX_REQUESTS_PER_ID", &l.RequestsPerID, half(&l.Requests, 20_000), maxRequests),
		{"PlacementsPerAddress", "PINBOARD_MAX_PLACEMENTS_PER_ADDRESS", &l.PlacementsPerAddress, 0, 0, maxRequests},
		size("ReplayBytes", "PINBOARD_MAX_REPLAY_BYTES", &l.ReplayBytes, 64*mib, 1, tib),
		span("DialTimeout", "PINBOARD_DIAL_TIMEOUT_MS", &l.DialTimeout, 2*time.Second, least, time.Hour),
		span("TLSTimeout", "PINBOARD_TLS_TIMEOUT_MS", &l.TLSTimeout, given(model.TLSHandshakeTimeout, 5*time.Second), least, time.Hour),
		span("AnswerTimeout", "PINBOARD_ANSWER_TIMEOUT_MS", &l.AnswerTimeout, given(model.ResponseHeaderTimeout, 10*time.Minute), least, day),
		span("UpgradeTimeout", "PINBOARD_UPGRADE_TIMEOUT_MS", &l.UpgradeTimeout, time.Minute, least, day),
		size("AnswerHeaderBytes", "PINBOARD_MAX_ANSWER_HEADER_BYTES", &l.AnswerHeaderBytes, answerHeader, 1, 16*mib),
		count("Informational", "PINBOARD_MAX_INFORMATIONAL", &l.Informational, 1000, 1_000_000),
		count("Registrations", "PINBOARD_MAX_REGISTRATIONS", &l.Registrations, 256, 100_000),
		count("RegistrationsPerKey", "PINBOARD_MAX_REGISTRATIONS_PER_KEY", &l.RegistrationsPerKey, half(&l.Registrations, 256), 100_000),
		count("Probes", "PINBOARD_MAX_PROBES", &l.Probes, 1000, 100_000),
		count("ProbesPerKey", "PINBOARD_MAX_PROBES_PER_KEY", &l.ProbesPerKey, half(&l.Probes, 1000), 100_000),
		size("RegistryBytes", "PINBOARD_MAX_REGISTRY_BYTES", &l.RegistryBytes, 128*mib, maxWorkerBody, tib),
		count("Instances", "PINBOARD_MAX_INSTANCES", &l.Instances, 250_000, 10_000_000),
	}
}

func (l *limit) get() int64 {
	switch value := l.value.(type) {
	case *int:
		return int64(*value)
	case *int64:
		return *value
	default:
		return int64(*value.(*time.Duration)) // there is no other
	}
}

func (l *limit) set(n int64) {
	switch value := l.value.(type) {
	case *int:
		*value = int(n)
	case *int64:
		*value = n
	case *time.Duration:
		*value = time.Duration(n)
	}
}

// text is a value as the field has it.
func (l *limit) text(n int64) string {
	if _, ok := l.value.(*time.Duration); ok {
		return time.Duration(n).String()
	}
	return fmt.Sprint(n)
}

// fill replaces zero values; model may say what for.
func (l *Limits) fill(model *http.Transport) {
	for _, f := range l.fields(model) {
		if f.get() == 0 {
			f.set(f.standard)
		}
	}
}

// check calls fault for each limit that is out of range.
func (l *Limits) check(fault func(format string, args ...any)) {
	for _, f := range l.fields(nil) {
		if n := f.get(); n < f.low || n > f.high {
			fault("Limits.%s is %s, must be from %s to %s", f.field, f.text(n), f.text(f.low), f.text(f.high))
		}
	}
}

// limits reads the variables of Limits. What is not set stays 0.
func (r *reader) limits(l *Limits) {
	for _, f := range l.fields(nil) {
		if _, ok := r.text(f.variable); !ok {
			continue
		}
		unit := int64(1)
		if _, ok := f.value.(*time.Duration); ok {
			unit = int64(time.Millisecond)
		}
		f.set(int64(r.number(f.variable, 0, float64(f.low/unit), float64(f.high/unit))) * unit)
	}
}
