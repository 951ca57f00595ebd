package store

import (
	"errors"
	"time"
)

// ErrNotTracked: the handle is not told of changes, so that Known knows
// nothing. Nothing was asked.
var ErrNotTracked = errors.New("the backing service does not tell of changes")

// Known is a row, and the generation of its bucket, as a handle knows them.
type Known struct {
	// SessionID and Epoch are the row's, "" and 0 if there is none. The session
	// may have ended: that is no change of the row.
	SessionID string
	Epoch     int64
	// Generation is another one each time a session ends in the bucket before
	// its lease does, or is Stopped, and each time a host name is bound that was
	// not, of a bucket without one; and none comes twice. It is "" if the
	// bucket has none, which then says nothing.
	Generation string
	// AsOf is a time of this process's monotonic clock. Row and generation are
	// what they were then, or have become since.
	AsOf time.Time
}
