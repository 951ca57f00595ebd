package worker

import (
	"io"
	"io/fs"
	"math"
	"syscall"
)

// filePiece is how much of a file is sent between two looks at the lease.
const filePiece = 1 << 20

// timelyReader is the source of a copy. What it reads when a response may not go
// on any more is not sent.
type timelyReader struct {
	io.Reader
	to *responder
}

// Read implements io.Reader.
func (t timelyReader) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	if t.to.goOn(); t.to.dropped != nil {
		return 0, t.to.dropped
	}
	return n, err
}

// regularFile returns the file that is the source of a copy, for which the
// server uses sendfile, and the limit of the copy, nil if there is none. That of
// an *os.File may come as a type of its own.
func regularFile(src io.Reader) (file io.Reader, limit *int64, ok bool) {
	if limited, is := src.(*io.LimitedReader); is {
		src, limit = limited.R, &limited.N
	}
	known, ok := src.(interface {
		syscall.Conn
		Stat() (fs.FileInfo, error)
	})
	if !ok {
		return nil, nil, false
	}
	info, err := known.Stat()
	return src, limit, err == nil && info.Mode().IsRegular()
}

// sendFile copies a file in pieces.
func (r *responder) sendFile(file io.Reader, limit *int64) (sent int64, err error) {
	whole := int64(math.MaxInt64)
	if limit == nil {
		limit = &whole
	}
	for *limit > 0 {
		if r.goOn(); r.dropped != nil {
			return sent, r.dropped
		}
		size := min(*limit, filePiece)
		n, err := io.Copy(r.ResponseWriter, &io.LimitedReader{R: file, N: size})
		sent, *limit = sent+n, *limit-n
		if err != nil || n < size {
			return sent, err
		}
	}
	return sent, nil
}
