package worker

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pausing is the source of a copy that a process freezes in the middle of.
type pausing struct {
	io.Reader
	halfway chan struct{}
	thaw    chan struct{}
	left    int
}

func (p *pausing) Read(b []byte) (int, error) {
	if p.left == 0 {
		close(p.halfway)
		<-p.thaw
	}
	p.left--
	return p.Reader.Read(b)
}

// What io.Copy hands over is looked at piece by piece: a body of a length that
// was announced would look whole as soon as its last piece is sent.
func TestACopyDoesNotGoOnPastTheLease(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"past the lease": true, "just not past the lease": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 128 << 10
			var src *pausing
			var copied error
			inBubble(t, Options{}, hosting(serving(func(_ *Instance, w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(size))
				_, copied = io.Copy(w, src)
			})), func(t *testing.T, h *harness) {
				src = &pausing{
					Reader:  bytes.NewReader(make([]byte, size)),
					halfway: make(chan struct{}), thaw: make(chan struct{}), left: 2,
				}
				h.start()
				got, done := ask(h.network(), h.outgoing(t.Context(), "/c/1"))
				<-src.halfway
				synctest.Wait()
				left := 15 * time.Second
				if !late {
					left--
				}
				h.step(left, left)
				close(src.thaw)
				<-done
				synctest.Wait()
				require.Equal(t, !late, got.whole(), "%d bytes, %v", len(got.body), got.err)
				if late {
					require.ErrorIs(t, copied, errLate)
				} else {
					require.NoError(t, copied)
				}
			})
		})
	}
}

// fileTaker is a server's ResponseWriter that may use sendfile.
type fileTaker struct {
	*httptest.ResponseRecorder
	pieces []int64
	after  func()
}

func (f *fileTaker) ReadFrom(src io.Reader) (int64, error) {
	limited, ok := src.(*io.LimitedReader)
	if ok {
		_, ok = limited.R.(syscall.Conn)
	}
	if !ok {
		return 0, errors.New("this is no file: no sendfile")
	}
	n, err := io.Copy(io.Discard, src)
	f.pieces = append(f.pieces, n)
	if f.after != nil {
		f.after()
	}
	return n, err
}

// A file goes to the server as one, so that it can use sendfile, but not as a
// whole.
func TestAFileIsNotSentOnPastTheLease(t *testing.T) {
	t.Parallel()
	const size = 2*filePiece + 10
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	copies := map[string]func(w http.ResponseWriter, file *os.File) (int64, error){
		"whole":   func(w http.ResponseWriter, file *os.File) (int64, error) { return io.Copy(w, file) },
		"limited": func(w http.ResponseWriter, file *os.File) (int64, error) { return io.CopyN(w, file, size) },
	}
	for name, send := range copies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent int64
			var copied error
			inBubble(t, Options{}, hosting(serving(func(_ *Instance, w http.ResponseWriter, _ *http.Request) {
				file, err := os.Open(path)
				if err != nil {
					return
				}
				defer file.Close()
				sent, copied = send(w, file)
			})), func(t *testing.T, h *harness) {
				h.start()
				to := &fileTaker{ResponseRecorder: httptest.NewRecorder()}
				h.w.ServeHTTP(to, h.request(http.MethodGet, "/c/1"))
				require.NoError(t, copied)
				require.EqualValues(t, size, sent)
				require.Equal(t, []int64{filePiece, filePiece, 10}, to.pieces)

				to = &fileTaker{ResponseRecorder: httptest.NewRecorder(), after: func() { h.step(15*time.Second, 15*time.Second) }}
				require.PanicsWithValue(t, http.ErrAbortHandler, func() {
					h.w.ServeHTTP(to, h.request(http.MethodGet, "/c/1"))
				})
				require.ErrorIs(t, copied, errLate)
				require.EqualValues(t, filePiece, sent)
				require.Len(t, to.pieces, 1)
			})
		})
	}
}
