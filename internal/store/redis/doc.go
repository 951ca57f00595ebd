// Package redis keeps a directory in Redis 6.2 or newer, or what speaks its
// protocol. Every read and every change is a Lua script, so that it is one
// atomic step, runs on the master, and goes by Redis' own clock. The scripts
// lie in lua/, each with its keys, arguments and answer.
//
// # Keys
//
// The fleet's keys begin with PREFIX:{fleet}: and a bucket's with
// PREFIX:{BINDING.SHARD}:, where all but letters, digits, '_' and '-' of the
// binding is written as %XX; in what is said of scripts a namespace is one under
// its host name, which is a binding. What one script touches thus lies in one slot of
// a Redis Cluster.
//
// Of the fleet:
//
//	s:SID      hash    a session; it lives as long as the lease
//	u:DIGEST   string  the sid that holds an advertise URL; lives as its session
//	c:CLIENT   hash    what is remembered of a client; outlives its last session
//	                   by store.ClientMemory
//	w:CLIENT   hash    control messages that wait; lives as c:CLIENT
//	x:SID      string  who displaced a session; outlives its lease by
//	                   store.SupersededMemory
//	g:BINDING  set     the classes of a binding that may have sessions
//	m:BINDING:CLASS
//	           zset    the sids of a class by end of lease: a hint. These two
//	                   live as c:CLIENT
//	sweep      string  the node that sweeps now; lives for seconds
//	live       zset    sids by end of lease: a hint, its members may have lapsed
//	namespaces set     the bindings that are swept: all that were registered and
//	                   not forgotten since
//	floor      string  the highest epoch of the bindings that were forgotten
//	layout     string  "VERSION SHARDS", by which the sessions were registered; lives
//	                   as the last of them: see Layout
//	ping       string  what was last written to see that something can be
//	lapses     hash    sid of each that is in live to the event that it has lapsed
//	events     stream  what happened to workers, store.KeptEvents of them or a few
//	                   more, by numbers that rise over both streams
//	moves      stream  the same of single ids
//
// Of a bucket:
//
//	s:SID      hash    a session in this bucket; it lives as long as the lease.
//	                   Of its rows, taken counts those placed since its last
//	                   heartbeat that no score tells, and rows those from before
//	r:LEAF     hash    rows, id to "epoch sid", with the letter of store.Why behind
//	                   the epoch
//	leaves     string  a bitmap of the r: keys that exist
//	meta       hash    last epoch, quarantine, version of the candidates, a bound on
//	                   their headroom (best), state of the sweep, layout
//	sessions   zset    sids by end of lease: a hint
//	candidates zset    sids by what is left of the headroom that they reported,
//	                   which tells of the placements since then; its members may
//	                   have lapsed
//	generation string  another number whenever a session ends before its lease,
//	                   is stopped, or gives way to a host name: see Known
//	clients    hash    clientId to its newest generation and its sids here
//	hosts      zset    host names that the namespace is bound under, by when
//	                   that is over at the latest: two leases after a heartbeat.
//	                   Only without a host name
//
// And of both, none, which is the beginning alone and is never there: see Slots that
// move.
//
// Only the s:, u:, c:, w:, x:, g:, m:, hosts, layout, ping and sweep keys have a TTL. No other
// key makes a session live: its s: record alone does, in the fleet and in each
// bucket, and only register.lua and join.lua create one. Whatever meets the sid
// of a record that is gone takes it for dead.
//
// # Steps of the clock
//
// TTLs go by the wall clock of Redis' host. Set back, it would let sessions live
// on by as much; so a session's record keeps for how long it was last let live,
// and what lives longer is cut down to that. Set forward, it ends leases whose
// owners serve on, which is to place nothing: each node knows from a bucket's
// earlier answers, to placements and heartbeats, by its own monotonic clock, which
// time the bucket can have reached, and resolve.lua places nothing past that. The
// node then has the bucket placed under quarantine for a lease, as a store that
// has lost its memory. See clocks for what a node does not notice.
//
// # Slots that move
//
// A Redis Cluster that gives a slot to another node moves its keys one after the
// other, and lets a script run on either of the two that has all of the keys that the
// script names. What else it reads and has not come yet, or has gone, may look as if it
// were not there: an id without its row, a session without its record. So scripts that
// change something, or say that a session or the row of an id is gone, for what they do
// not name and is not there, name a key that never is, none: Redis refuses them as long as
// the slot moves (TRYAGAIN), before they have begun.
//
// # Rows
//
// A row's value holds no placing time: an epoch follows the clock in
// microseconds, and a row keeps one as long as the other. A bucket's rows are
// spread over a fixed number of hashes by a hash of the id. Redis packs a hash
// of a few hundred short entries, so that a row costs a third of what a key of
// its own does; and the hashes can be walked, a few at a time, which is how rows
// are listed and how those of dead sessions are found. No session has a list of
// its rows that would have to be kept in step.
//
// # Layout
//
// In which key a row lies depends on the prefix, the number of shards, and what this
// package makes of an id and a binding, which layoutVersion stands for. Two prefixes
// never meet. Nodes that differed in one of the others would not see each other's rows
// and give an id two owners, so every live session of a bucket is of one layout, which
// meta tells: join.lua records no session where one of another layout lives, and
// resolve.lua places nothing for a node of another one. Whatever the number of shards,
// a binding has its bucket 0, which all its sessions join. So no two of one binding are
// live by different layouts, though they may share no other bucket.
//
// That a node with other shards finds a bucket without sessions must not be told as if
// there were none. So the fleet has the layout, too: it lives as long as the sessions
// that it is of. Registrations and heartbeats compare it in their first step, and only
// those that succeed set it. What else depends on where rows lie asks for it first, now
// and then, which is about the answer alone (agree). Should the key be lost while
// sessions live, another node's registration is refused by the buckets, and the next
// heartbeat sets it anew. Where all is lost, the first registration decides.
//
// The lease time is not of it: rows do not depend on it, sessions tell theirs, and no
// renewal shortens one. A node with a shorter one has shorter quarantines, which
// matters only if Redis is wiped, or its clock set forward, while leases are longer.
//
// # What a node knows
//
// Known reads rows, and the generation of their bucket, through rueidis' client-side
// cache: Redis tells the connection on which a key was read of the key's next
// change, whatever makes it: a script of any node, a flush, an eviction. A
// connection that ends takes its cache along.
//
// Of a connection that is silent, but not known to have ended, nothing is heard;
// rueidis itself may need ClientOption.ConnWriteTimeout to notice, ten seconds by
// default, and longer, or for ever, if the host says so. So the generation is
// read anew after a sixth of a lease. Its answer comes on the connection that
// tells of the bucket's rows, which have its hash tag, and behind everything that
// was told before: when it is there, all that the cache still holds was so when it
// was asked for. That time is Known.AsOf. An answer that another connection has
// given, because a node of a cluster sent the client on, says nothing of the rows,
// and is not taken.
//
// A client of NewClient says what it is told, and directories remember rows by that
// (sightings): while nothing was heard of a row's key since before the row was looked at
// in the cache, it is in there yet, and is not looked for. What is heard comes in the
// order in which the cache changes, so a row is forgotten here when it is forgotten
// there, or when a connection is dialed, which is before another one can answer for it.
// The generation is looked at as ever.
//
// The commands are not marked as reading only, so that a client that sends such
// ones to replicas sends these to the master.
//
// # Steps that span buckets
//
// The fleet's record decides about a session, and what it decides is then
// applied in the buckets. Each state has a version that rises, and a bucket
// ignores a state older than the one it has: a heartbeat that is late undoes no
// drain. A node that dies between the two leaves buckets behind the fleet until
// the next heartbeat, which applies the whole state.
//
// A registration goes: fleet (register.lua), buckets (join.lua), rows
// (reclaim.lua), the end of the client's former sessions in the buckets
// (retire.lua), and last the check that it has not been overtaken (settle.lua).
// The former session's records, and so its rows, live on until those listed are
// the new session's: no listed row is free in between. A later registration
// leaves its generation in each bucket, which keeps steps of earlier ones out,
// however late they come.
//
// Sessions that a registration displaces or drains are marked by its first step,
// in the fleet, where worker epochs and envs are compared: a session is of one
// class, "EPOCH.ENV", in each binding, and a class matters as long as one of its
// sessions lives. Where many give way they are marked first, a hundred a step,
// and the session is recorded last. In the buckets they give way before the
// session joins. A node that dies in between leaves no session that two others
// see differently: at worst the old ones stop and the new one registers again.
//
// Whether a namespace is bound under a host name is known in the buckets of both
// bindings: the one without a host name has the names in hosts, and says
// elsewhere; the one under the name knows when its last session ended, and
// decides for how long that still counts.
//
// # What is forgotten
//
// A binding with no sessions, no clients and no rows in any bucket, which no
// client has registered that is remembered, is forgotten by a sweep: about a day
// after its last worker. Its buckets lose their memory. The highest of their
// epochs goes to floor first, which registrations bring to new buckets, so that
// epochs rise even where the clock was set back. If it comes back it has a
// quarantine.
//
// # Ids that go together
//
// Ids of one bucket that are asked for at the same time gather, and go in one run of
// resolve.lua, which goes through them in turn: see gathering. A run that Redis
// refuses has written nothing. One that an id fails, whose row is of another kind than told
// above, has placed, counted and answered those before it, and the others are asked for
// alone. And what a run has written whose answer is lost is found by whoever asks again. The
// epochs of all ids are taken before the first of them has its row.
//
// # Calls that run twice
//
// rueidis sends a script again only where the server said that it did not know
// it, or was not the right node. A host may wrap its client in something that
// retries, and callers try again themselves; so every script that is run twice
// does what it did the first time, or nothing. The exception is a release that
// names no epoch: run twice, it also frees what the session got in between; and an
// event may be told twice.
package redis
