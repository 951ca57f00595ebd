// Package store defines where pinboard keeps its directory: sessions, rows and
// what placement needs to choose. Implementations are in the packages below;
// storetest is the suite that every one of them passes.
//
// A store only stores. It knows no HTTP, no credentials and no policy, and it
// never trusts a caller's clock: deadlines are judged by the store's own.
//
// # Buckets
//
// Rows are kept in buckets, one per (namespace, shard), shard being a hash of
// the id. What the protocol calls one atomic step is atomic within a bucket. A
// session is recorded once for the fleet and once in each bucket it serves; a
// row is judged by its bucket's record alone. A renewal that did not reach
// every bucket is an error, so a worker's own view of its lease never outlives
// any of the records.
//
// # Bindings
//
// A worker binds its namespaces, under a host name or without one (protocol
// §7). Rows belong to a binding, and where this page says namespace of a row or
// a bucket it means the binding, whose name Bind makes.
//
// The sessions of a binding that are neither stopped nor displaced have one
// worker epoch: a registration of a lower one than a live session's is refused,
// and one of a higher epoch displaces all below it, for good and in all their
// bindings.
//
// # Safety
//
// A session record, in the fleet and in a bucket, is only ever created by
// Register and only ever renewed while it is there: what lapsed, was
// deregistered or was replaced never comes back, whatever arrives late.
package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// What a caller branches on. Every other error but an *Unequal means that the store could not
// be asked or did not answer: nothing is known then, and the caller must
// neither place nor refuse for good.
var (
	// ErrNoSession: the session is unknown, lapsed, deregistered, replaced, or
	// no longer renewed because another process took its advertise URL. A
	// *Superseded is one, too.
	ErrNoSession = errors.New("no such live session")
	// ErrLowerEpoch: a binding has a live session of a higher worker epoch. It
	// comes wrapped in a text that names the two.
	ErrLowerEpoch = errors.New("a higher worker epoch is live")
	// ErrOtherEnv: a binding has a live session of another env. It comes
	// wrapped in a text that names the two.
	ErrOtherEnv = errors.New("another env is live")
	// ErrOtherSecret: the clientId has a live session with another secret.
	ErrOtherSecret = errors.New("the clientId is live with another secret")
	// ErrOvertaken: a later registration of the same clientId has won.
	ErrOvertaken = errors.New("a later registration of the same clientId has won")
	// ErrNoClient: the clientId is not known (any more).
	ErrNoClient = errors.New("no such clientId")
	// ErrNotPlaced: the id has no row, or only a dead session's.
	ErrNotPlaced = errors.New("the id is not placed")
	// ErrQueueFull: the worker has 1,000 control messages waiting.
	ErrQueueFull = errors.New("too many control messages are waiting")
)

// MaxMessages bounds the control messages that wait for one client.
const MaxMessages = 1000

// ClientMemory is how long a client is remembered past its last session: its
// drain, its control messages and its former session ids.
const ClientMemory = 24 * time.Hour

// Config is what a directory is opened with. All nodes of a deployment use the
// same prefix and number of shards: see Unequal.
type Config struct {
	// Prefix separates deployments that share one backend: directories with
	// different prefixes never meet. It is not empty and has no braces.
	Prefix string
	// LeaseTTL is how long a session lives without a heartbeat. A renewal
	// never shortens a lease that another node granted for longer.
	LeaseTTL time.Duration
	// Shards is the number of buckets per namespace, at least 1.
	Shards int
}

// Backend opens directories on one backing service.
type Backend interface {
	// Open returns the directory for cfg. It does no I/O.
	Open(cfg Config) Store
}

// Store is one directory. All methods may be called concurrently. Every method
// returns soon after its context ends.
type Store interface {
	Sessions
	Rows
	Operator
	Events

	// Sweep removes a bounded number of the rows and records that dead
	// sessions left behind, and says whether more is left. Of many nodes that
	// call it only one does the work at a time; the others get (0, false).
	Sweep(ctx context.Context) (removed int, more bool, err error)
	// Ping returns nil if the store answers, and takes writes; an *Unequal if it is of
	// no use to this node.
	Ping(ctx context.Context) error
}

// Sessions is the life of worker sessions (protocol §2).
type Sessions interface {
	// CheckRegister says whether Register would be refused right now with
	// ErrOtherSecret, ErrLowerEpoch or ErrOtherEnv. It changes nothing.
	CheckRegister(ctx context.Context, r Registration) error

	// Register makes a session (protocol §2, register 3-5). In this order:
	//
	//   - a live session of the same clientId with another secret:
	//     ErrOtherSecret, nothing changed;
	//   - a live session of another client in one of the bindings that has a
	//     higher worker epoch: ErrLowerEpoch; or the same epoch and another
	//     env, unless Takeover says otherwise or the client itself is drained:
	//     ErrOtherEnv. Nothing changed. Stopped and displaced sessions are live
	//     until their leases end;
	//   - the sessions of other clients in the bindings that have a lower
	//     epoch are displaced: Stopped, as below, in all their bindings, and
	//     their heartbeats return a *Superseded, also for SupersededMemory
	//     after their leases have ended;
	//   - the clients of another env are drained, for Takeover at most, unless
	//     the registering client is itself;
	//   - the client's former session, if any, is no longer renewed and takes
	//     no placements;
	//   - the live session of another client on the same advertise URL, if
	//     any, becomes Stopped: not renewed (ErrNoSession), no new placements,
	//     its rows stay its own until its lease ends;
	//   - the session is recorded, with a full lease, not yet active;
	//   - the instances are reclaimed: a row that is absent, dead, or belongs
	//     to a former session of this clientId and secret becomes this
	//     session's; a row of any other live session is a duplicate. A row of
	//     a former session of this clientId and secret keeps its epoch and
	//     placing time, any other gets a new epoch. Registered.Epochs tells
	//     those that a registration gave. Reclaiming takes no headroom, and neither stamps nor minds a quarantine;
	//   - the client's former session ends in every bucket, whether or not it
	//     is served any more; its remaining rows are dead rows.
	//
	// If a later registration of the same client got ahead meanwhile,
	// ErrOvertaken; at most one session of a client survives.
	Register(ctx context.Context, r Registration) (Registered, error)

	// Activate lets a session take placements. Called when the registration's
	// answer is written (protocol §2, register 6). ErrNoSession if it has
	// ended. A heartbeat activates too.
	Activate(ctx context.Context, sessionID string) error

	// Heartbeat renews the session in the fleet and in all its buckets,
	// records headroom and the worker's own draining flag, drops acked control
	// messages, and returns what the worker has to know. ErrNoSession if the
	// session's record is gone anywhere, or if it is Stopped; a *Superseded if
	// it was displaced.
	//
	// Messages are delivered in the order they were queued, on every beat
	// until acked. A message whose row is no longer this session's, or whose
	// namespace the session does not serve, is dropped.
	Heartbeat(ctx context.Context, b Beat) (BeatAnswer, error)

	// SetDegraded records whether the last probe failed. ErrNoSession if the
	// session has ended.
	SetDegraded(ctx context.Context, sessionID string, degraded bool) error

	// Deregister ends a session: its rows are dead rows at once. It is O(1) in
	// the number of rows. Ending an unknown session is no error. The client's
	// drain is remembered.
	Deregister(ctx context.Context, sessionID string) error

	// Session returns a live session's record, or ErrNoSession, which is a
	// *Superseded if it was displaced before it ended. A Stopped session is
	// live until its lease ends.
	Session(ctx context.Context, sessionID string) (Session, error)

	// States says, in order, what became of sessions. It is how a node learns
	// that it must cut open requests.
	States(ctx context.Context, keys []SessionKey) ([]SessionState, error)

	// Live returns every live session, in a stable order.
	Live(ctx context.Context) ([]Session, error)
}

// Rows is the directory of placements (protocol §§8, 9).
type Rows interface {
	// Resolve returns the row's live owner, or places the id; one atomic step.
	Resolve(ctx context.Context, r Request) (Result, error)

	// Candidates returns the sessions that may take placements in the bucket
	// of (binding, id), with the version of that set for Request.View. The
	// version changes whenever a session joins or leaves the set, but not when
	// headroom changes.
	Candidates(ctx context.Context, binding, id string) (View, error)

	// Known returns the id's row, whether or not its owner is live, from what
	// the handle knows, as a rule: the backing service tells it of changes. It
	// asks where it knows nothing, and now and again to hear whether it is still
	// told. The error is ErrNotTracked where changes are not told of. With AtHand, or
	// another context that has ended already, it asks for nothing: what is not at hand
	// is an error.
	Known(ctx context.Context, binding, id string) (Known, error)

	// Lookup returns the row if its owner is live, or ErrNotPlaced.
	Lookup(ctx context.Context, binding, id string) (Row, error)

	// Release frees each row that still belongs to the session named and, if
	// the epoch is not 0, to that placement; Namespace names the binding. It
	// returns how many it freed.
	Release(ctx context.Context, releases []wire.Release) (int, error)

	// Rows returns a page of the rows of one binding whose owners are live.
	// cursor is "" for the first page; next is "" after the last one. A row
	// that stays in place is returned at least once in a full walk; one that
	// moves meanwhile may be missed or seen twice. A page has at most limit
	// rows, and may have fewer, or none, before the last one. A cursor that
	// the store did not make is ErrBadCursor. Of the filters, a row passes all;
	// those that pass none count as looked at, and a page looks at a bounded
	// number.
	Rows(ctx context.Context, binding, cursor string, limit int, only ...RowFilter) (rows []Row, next string, err error)

	// Counts returns how many rows sessions have in each of their bindings, in
	// the order of the sessions and of their namespaces. Its cost does not grow
	// with the rows. Of a session that has ended it is 0.
	Counts(ctx context.Context, sessions []Session) ([][]int, error)

	// Quarantine returns what is left of the longest running quarantine of any
	// bucket, 0 if there is none.
	Quarantine(ctx context.Context) (time.Duration, error)
}

// RowFilter is which rows are asked for; the zero value passes all.
type RowFilter struct {
	ClientID string // of the owner; "" for any
	Prefix   string // of the id
}

// Passes reports whether a row is asked for.
func (f RowFilter) Passes(r Row) bool {
	return (f.ClientID == "" || f.ClientID == r.ClientID) && strings.HasPrefix(r.ID, f.Prefix)
}

// ErrBadCursor: a page was asked for with a cursor that is not of this store.
var ErrBadCursor = errors.New("malformed cursor")

// Operator is what operators change (protocol §4).
type Operator interface {
	// Client returns what is remembered of a client, or ErrNoClient.
	Client(ctx context.Context, clientID string) (Client, error)
	// Drain stops new placements on the client, now and in later sessions. A
	// nil deadline is none; a second call replaces the first. ErrNoClient if
	// it is unknown.
	Drain(ctx context.Context, clientID string, deadline *time.Duration) (Drain, error)
	// Undrain takes a drain back; no error if there was none.
	Undrain(ctx context.Context, clientID string) error
	// WindDown queues a message for the owner of the id; a nil deadline
	// revokes. A newer message for an id replaces an older one that waits.
	// ErrNotPlaced, or ErrQueueFull.
	WindDown(ctx context.Context, binding, id string, deadline *time.Duration) error
}

// Registration is what Register records.
type Registration struct {
	SessionID    string // minted by the caller, never reused
	ClientID     string
	Secret       wire.Secret
	Namespaces   []string // valid, each once
	AdvertiseURL string   // normalised: equal URLs are equal texts
	// BackendHosts are the rules of the credential that registered, by which
	// later dials are checked; BackendAddr is the address that answered the
	// probe, "" if the URL names an address already. Kept, not interpreted.
	BackendHosts []string
	BackendAddr  string
	Headroom     float64
	Draining     bool
	// Hostname is the host name that the namespaces are bound under, "" for
	// none; normalised: equal names are equal texts.
	Hostname string
	// Epoch is the worker epoch, at least 0.
	Epoch int64
	// Env is the env of the namespaces that Envs does not name; "" for none.
	Env  string
	Envs map[string]string
	// Takeover, if it is above 0, drains the clients of another env with that
	// deadline, or the one that they have if that is sooner; else such a
	// client refuses the registration.
	Takeover time.Duration
	// Instances lists live ids; each namespace is one of Namespaces and each
	// id is valid.
	Instances map[string][]string
}

// Registered is what Register did.
type Registered struct {
	TTL        time.Duration
	Drain      Drain
	Duplicates []wire.Ref
	// Epochs are those of the instances that are the session's now and whose rows
	// have their epochs from a registration: no request may have told the worker
	// yet. They are there again in each later registration that lists them, since
	// an answer may be lost.
	Epochs Epochs
	// Displaced and Drained are the sessions that made way.
	Displaced, Drained []string
}

// Epochs are placement epochs, by namespace and id.
type Epochs map[string]map[string]int64

// Set notes one; the map is made when there is one.
func (e *Epochs) Set(ref wire.Ref, epoch int64) {
	if *e == nil {
		*e = Epochs{}
	}
	if (*e)[ref.Namespace] == nil {
		(*e)[ref.Namespace] = map[string]int64{}
	}
	(*e)[ref.Namespace][ref.ID] = epoch
}

// Drain is an operator's drain.
type Drain struct {
	Draining bool
	// Deadline is set if the drain has one; Left is then what is left of it,
	// never below 0.
	Deadline bool
	Left     time.Duration
}

// Beat is one heartbeat.
type Beat struct {
	SessionID string
	Headroom  float64
	Draining  bool
	Acks      []string
}

// BeatAnswer is what a heartbeat brings back.
type BeatAnswer struct {
	TTL      time.Duration
	Drain    Drain
	Degraded bool // as last recorded
	Messages []Message
}

// Message is a control message that waits for an ack.
type Message struct {
	ID         string
	Namespace  string
	InstanceID string
	// Revoke takes earlier wind-downs back; otherwise Left is what is left of
	// the deadline, never below 0.
	Revoke bool
	Left   time.Duration
}

// Session is a live session's record.
type Session struct {
	ID           string
	ClientID     string
	Secret       wire.Secret
	Namespaces   []string
	AdvertiseURL string
	BackendHosts []string
	BackendAddr  string
	Hostname     string
	Epoch        int64
	Env          string
	Envs         map[string]string
	// Headroom is what the last beat reported less what was placed since, in
	// all buckets together, not below 0.
	Headroom     float64
	Draining     bool // the worker's own flag
	Drain        Drain
	Degraded     bool
	Active       bool
	Stopped      bool // lost its advertise URL, or was displaced
	RegisteredAt time.Time
	TTL          time.Duration // what is left of the lease
}

// SessionKey names a session to States.
type SessionKey struct{ SessionID, ClientID string }

// SessionState is what became of a session.
type SessionState struct {
	Alive bool
	TTL   time.Duration // what is left of the lease, if alive
	// Successor is the live session of the same client and secret, if the
	// session has ended and there is one.
	Successor string
	// Forgotten: the session is not there, and neither is any memory of its
	// client; the store was wiped, so that it tells nothing of the session.
	Forgotten bool
}

// Client is what is remembered of a client.
type Client struct {
	ClientID   string
	SessionID  string // the live session, "" if none
	Namespaces []string
	Drain      Drain
}

// AnyView is the Request.View of a preference that does not come from a view.
const AnyView int64 = -1

// Request asks for the owner of an id.
type Request struct {
	// Hostname and Namespace are those of the binding.
	Hostname      string
	Namespace, ID string
	// Unless is a host name that is preferred to none: where the namespace is
	// bound under it, or was less than a lease ago, the answer is Elsewhere and
	// nothing was done. Only for the binding without a host name; "" for none.
	Unless string
	// Preferred is the session that wins a first placement if it is a
	// candidate and BalanceFactor allows it; "" for none.
	Preferred string
	// PreferredBy is why, ByCaller or ByAffinity.
	PreferredBy Choice
	// View is the version of the candidates that Preferred was chosen from.
	// If a placement is needed and the version is no longer current, the
	// answer is StaleView and nothing was done.
	View int64
	// BalanceFactor is at least 1 (protocol §9).
	BalanceFactor float64
	// Refused is a placement that its worker would not serve: if the row is
	// still that one, it is freed and the id placed on another client.
	Refused *Refused
	// Dice decides what is left to chance.
	Dice Dice
}

// Refused names a placement that was refused in-band (protocol §5).
type Refused struct {
	SessionID string
	ClientID  string
	Epoch     int64
}

// Outcome is how a Resolve ended.
type Outcome int

// The outcomes of Resolve.
const (
	// Owned: the row has a live owner.
	Owned Outcome = iota + 1
	// Placed: the id was placed just now.
	Placed
	// UnknownNamespace: no live session serves the namespace. Left is then,
	// under a host name, what is left of one lease since the last one ended.
	UnknownNamespace
	// Quarantined: the bucket has never placed and waits (protocol §8).
	Quarantined
	// NoCandidate: there are live sessions, none may take a placement.
	NoCandidate
	// StaleView: see Request.View.
	StaleView
	// Elsewhere: see Request.Unless.
	Elsewhere
)

// Result is a Resolve's answer.
type Result struct {
	Outcome Outcome
	// For Owned and Placed.
	SessionID string
	Epoch     int64
	// For Placed: why it was, and whose the id was before, "" if that is not known.
	Why    Why
	Former string
	// Left is what is left of the owner's lease, or of the quarantine.
	Left time.Duration
	// ClockSet: the quarantine has begun just now, because the store's clock was
	// set forward and has ended leases early.
	ClockSet bool
	// Begun: the quarantine has begun just now.
	Begun bool
	// Stopped: the owner lost its advertise URL to another process, or was
	// displaced; it must not be called.
	Stopped bool
}
