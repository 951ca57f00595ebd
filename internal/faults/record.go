package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// Kind is what an Event tells.
type Kind string

const (
	// Served: an instance carried out an operation.
	Served Kind = "served"
	// Ticked: an instance held itself to be the owner of its id, without
	// having been asked.
	Ticked Kind = "ticked"
	// Granted: pinboard granted a lease to the process.
	Granted Kind = "granted"
	// GaveUp: the process gave an id up, or all of them if ID is empty: it
	// released the id, refused a request for it, was told that another one
	// owns it, or deregistered. Pinboard may place it elsewhere from then on.
	GaveUp Kind = "gave-up"
	// Kept: the process registers and lists the ids that it holds; it has
	// given all others up.
	Kept Kind = "kept"
)

// Event is one line of a worker process's journal. Times are of Now.
type Event struct {
	Kind    Kind   `json:"kind"`
	Process string `json:"process"`

	// ID is of Served, Ticked and GaveUp: namespace and id, "/rooms/id-1".
	ID string `json:"id,omitempty"`
	// Life names one instance: a process that activates an id twice has two
	// lives of it.
	Life  string `json:"life,omitempty"`
	Epoch int64  `json:"epoch,omitempty"`
	// Op is the operation's number, unique in the whole run.
	Op int64 `json:"op,omitempty"`
	// Count is how many operations the instance has carried out, with this one.
	Count int `json:"count,omitempty"`

	// Begin is when the request reached the process, before the process
	// decided whether it may serve it; when it was about to tick; when it sent
	// the request that was granted; when it gave up or listed.
	Begin time.Duration `json:"begin"`
	// Entered, of Served and Ticked, is when the process had decided that it
	// may. A lease that was granted in between is one, too.
	Entered time.Duration `json:"entered,omitempty"`
	// End of Served is when the operation was carried out, before the answer;
	// of Granted, when the lease ends.
	End time.Duration `json:"end,omitempty"`
	// At is when a Granted reached the process, before it was told.
	At time.Duration `json:"at,omitempty"`
	// IDs are those of Kept.
	IDs []string `json:"ids,omitempty"`
}

// Ack is an operation that a client was told is done, with what it was told.
type Ack struct {
	ID      string
	Op      int64
	Process string
	Life    string
	Epoch   int64
	Count   int
	// Sent and Received are of Now, in the client.
	Sent, Received time.Duration
}

// History is the record of a run.
type History struct {
	Events []Event
	Acks   []Ack
	// Unguarded are the processes that check their lease when a request comes
	// but not again when its answer begins. What such a process carried out
	// in time and answered late is no violation.
	Unguarded map[string]bool
	// Failovers are those of the store in which writes were lost.
	Failovers []Failover
}

// Failover is a change to another master that had not seen what was written
// since some time: the documented exception from one owner, and from no early
// placement.
type Failover struct {
	// From and To are since when and until when the old master took writes that
	// the new one never saw.
	From, To time.Duration
	// Taken is when the new master was there at the earliest. It is before To
	// where the old master, cut off from the new one, was still written to.
	Taken time.Duration
	// Window is how much longer than its successor an owner may be asked whose
	// placement was lost; and how long after To leases may end early, whose
	// renewals were lost. It is one lease.
	Window time.Duration
}

// Journal appends events to a file, each with one write, so that what was
// written outlives a kill of the process.
type Journal struct {
	process string
	mu      sync.Mutex
	file    *os.File
}

// OpenJournal makes or continues a journal of the process.
func OpenJournal(path, process string) (*Journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	return &Journal{process: process, file: file}, nil
}

// Write appends an event. An error is for the process to die of: it must not
// answer what is not on record.
func (j *Journal) Write(e Event) error {
	e.Process = j.process
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("write to the journal: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write to the journal: %w", err)
	}
	return nil
}

// ReadJournal reads a journal. A last line that a kill cut short is left out.
func ReadJournal(path string) ([]Event, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	var events []Event
	for number := 1; len(text) > 0; number++ {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			break
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("read the journal %s, line %d: %w", path, number, err)
		}
		events = append(events, e)
		text = rest
	}
	return events, nil
}
