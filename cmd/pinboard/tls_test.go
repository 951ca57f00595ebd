package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// pair returns a certificate of its own making and its key, in PEM.
func pair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// over asks for the health of a server, on a connection of its own.
func over(t *testing.T, base string, protocols ...func(*http.Protocols, bool)) (*http.Response, error) {
	t.Helper()
	transport := &http.Transport{
		Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}
	for _, speak := range protocols {
		speak(transport.Protocols, true)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/healthz", nil)
	require.NoError(t, err)
	resp, err := transport.RoundTrip(req)
	if err == nil {
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	transport.CloseIdleConnections()
	return resp, err
}

func TestTLSIsSpokenWithHTTP2AndARenewedCertificateServed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func(name string, text []byte) { require.NoError(t, os.WriteFile(name, text, 0o600)) }
	cert, key := pair(t, 1)
	write(certFile, cert)
	write(keyFile, key)
	cmd := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=memory:", "PORT=0", "PINBOARD_TLS_CERT="+certFile, "PINBOARD_TLS_KEY="+keyFile)
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	base, rest := listening(t, log)
	base = strings.Replace(base, "http:", "https:", 1)
	serial := func(protocols ...func(*http.Protocols, bool)) (int64, int) {
		t.Helper()
		resp, err := over(t, base, protocols...)
		require.NoError(t, err)
		return resp.TLS.PeerCertificates[0].SerialNumber.Int64(), resp.ProtoMajor
	}
	shown, major := serial((*http.Protocols).SetHTTP1, (*http.Protocols).SetHTTP2)
	require.Equal(t, []int64{1, 2}, []int64{shown, int64(major)})
	_, major = serial((*http.Protocols).SetHTTP1)
	require.Equal(t, 1, major)

	cert, key = pair(t, 2)
	write(certFile, cert) // and the key not yet
	shown, _ = serial((*http.Protocols).SetHTTP2)
	require.EqualValues(t, 1, shown, "the last good pair serves on")
	write(keyFile, key)
	shown, _ = serial((*http.Protocols).SetHTTP2)
	require.EqualValues(t, 2, shown)
	require.NoError(t, os.Remove(keyFile))
	shown, _ = serial((*http.Protocols).SetHTTP2)
	require.EqualValues(t, 2, shown)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	tail, err := io.ReadAll(rest)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.Contains(t, string(tail), "the certificate has changed and is not usable")
	require.Contains(t, string(tail), `"msg":"the certificate has changed"`)
}

// settings returns what a server says first over HTTP/2.
func settings(t *testing.T, addr string) map[http2.SettingID]uint32 {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	require.NoError(t, framer.WriteSettings())
	frame, err := framer.ReadFrame()
	require.NoError(t, err)
	said, ok := frame.(*http2.SettingsFrame)
	require.True(t, ok)
	out := map[http2.SettingID]uint32{}
	require.NoError(t, said.ForeachSetting(func(s http2.Setting) error { out[s.ID] = s.Val; return nil }))
	return out
}

func TestHTTP2WithoutTLSIsSpokenWhenAskedFor(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"true", "false"} {
		cmd := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=memory:", "PORT=0", "PINBOARD_H2C="+setting)
		log, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		base, rest := listening(t, log)
		resp, err := over(t, base, (*http.Protocols).SetUnencryptedHTTP2)
		if setting == "true" {
			require.NoError(t, err)
			require.Equal(t, 2, resp.ProtoMajor)
			limits := settings(t, strings.TrimPrefix(base, "http://"))
			require.EqualValues(t, 250, limits[http2.SettingMaxConcurrentStreams])
			require.EqualValues(t, 512<<10, limits[http2.SettingInitialWindowSize])
		} else {
			require.Error(t, err)
		}
		_, err = over(t, base, (*http.Protocols).SetHTTP1)
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_, _ = io.Copy(io.Discard, rest)
		require.NoError(t, cmd.Wait())
	}
}

func TestAnUnusableCertificateExitsWithStatus2AndNamesItsVariable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	cert, _ := pair(t, 1)
	_, other := pair(t, 2)
	for want, files := range map[string][2][]byte{
		"pinboard: PINBOARD_TLS_CERT: ":                   {nil, other},
		"pinboard: PINBOARD_TLS_KEY: ":                    {cert, nil},
		"pinboard: PINBOARD_TLS_CERT, PINBOARD_TLS_KEY: ": {cert, other},
	} {
		for i, name := range []string{certFile, keyFile} {
			_ = os.Remove(name)
			if files[i] != nil {
				require.NoError(t, os.WriteFile(name, files[i], 0o600))
			}
		}
		out, err := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=memory:", "PORT=0",
			"PINBOARD_TLS_CERT="+certFile, "PINBOARD_TLS_KEY="+keyFile).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		require.Equal(t, 2, exit.ExitCode())
		require.True(t, bytes.HasPrefix(out, []byte(want)), "%s", out)
		require.Equal(t, 1, bytes.Count(out, []byte("\n")))
	}
}
