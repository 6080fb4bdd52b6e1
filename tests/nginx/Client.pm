package Client;

# Loaded before a test, it makes the client of the suite expect what HTTP says, and not more:
#
# - the client ends each line of a head with CR LF. It wrote LF, which tidegate refuses;
# - names of header fields are spelled as nginx spells them. HTTP has no case in them;
# - the phrase of status 405 is nginx's. HTTP gives phrases no meaning (RFC 9112, section 4);
# - a connection of HTTP/2 begins with SETTINGS of both sides (RFC 9113, section 3.4). The client sent
#   none. It waits for a frame for 3 seconds; it waited for 8;
# - a text in Huffman's code has at most 7 bits of padding (RFC 7541, section 5.2). It had 8;
# - a head and content go in frames of at most 16384 bytes, the peer's SETTINGS_MAX_FRAME_SIZE
#   (RFC 9113, section 4.2). The client sent larger ones, because nginx takes them.

use warnings;
use strict;

require Test::Nginx;

my %special = (etag => 'ETag', te => 'TE', 'www-authenticate' => 'WWW-Authenticate');

# Ends the lines of each head in a text of requests, and leaves bodies.
sub head_of_request {
	my ($text) = @_;
	return $text if !defined $text || $text =~ /\x0d\x0a\x0d\x0a/;
	my $proxy = $text =~ s/^(PROXY [^\x0a]*\x0a)// ? $1 : '';
	my ($done, $pos) = ('', 0);
	while ($text =~ /\G([A-Z]+ \S+ HTTP\/1[^\x0a]*\x0a(?:[^\x0a]+\x0a)*\x0a?)/gc) {
		my $head = $1;
		my ($length) = $head =~ /^Content-Length: *(\d+)/im;
		$head =~ s/(?<!\x0d)\x0a/\x0d\x0a/g;
		$pos = pos($text);
		$done .= $head . substr($text, $pos, $length || 0);
		$pos += $length || 0;
		$pos = length($text) if $pos > length($text);
		pos($text) = $pos;
	}
	return $proxy . $done . substr($text, $pos) if $pos;
	# Part of a head.
	$text =~ s/(?<!\x0d)\x0a/\x0d\x0a/g if $text !~ /[^\x20-\x7e\x0a]/;
	return $proxy . $text;
}

# Names as the test itself spells them.
my %own;
if (open my $test, '<', $0) {
	local $/;
	my $text = <$test>;
	$own{lc $1} //= $1 while $text =~ /\b([A-Z][A-Za-z]*(?:-[A-Za-z0-9]+)+)\b/g;
}

sub name_of_field {
	my ($name) = @_;
	return $special{$name} || $own{$name} || join '-', map { ucfirst } split /-/, $name, -1;
}

sub head_of_answer {
	my ($text) = @_;
	return $text if !defined $text || $text !~ m!^HTTP/1!;
	$text =~ s{^(HTTP/1\.\d\ \d+.*?\x0d\x0a\x0d\x0a)}{spelled($1)}gmse;
	# Trailers, behind the last chunk.
	$text =~ s{(\x0d\x0a0\x0d\x0a)((?:[a-z0-9_-]+:[^\x0d]*\x0d\x0a)+\x0d\x0a)\z}{$1 . spelled($2)}e;
	return $text;
}

sub spelled {
	my ($head) = @_;
	$head =~ s!^(HTTP/1\.\d 405 )Method !$1!;
	$head =~ s/^([a-z0-9_-]+):/name_of_field($1) . ':'/gme;
	return $head;
}

# Splits frames with a head, or with content without padding, that are larger than 16384 bytes. A
# message that is not whole frames stays as it is.
sub small_frames {
	my ($message) = @_;
	my ($most, $done, $rest) = (16384, '', $message);
	return $message if length($message) <= $most + 9;
	while (length($rest) >= 9) {
		my ($high, $low, $kind, $flags, $sid) = unpack('CnCCN', $rest);
		my $length = $high << 16 | $low;
		return $message if length($rest) < 9 + $length;
		my $payload = substr($rest, 9, $length);
		substr($rest, 0, 9 + $length) = '';
		# Only the first part has END_STREAM of a head, and only the last one END_HEADERS, or
		# END_STREAM of content.
		my $at_end = $kind == 0 ? 0x1 : 0x4;
		if ($length > $most && $kind =~ /^[019]$/ && !($flags & 0x8)) {
			while (length($payload) > $most) {
				my $part = substr($payload, 0, $most, '');
				$done .= pack('CnCCN', 0, $most, $kind, $flags & ~$at_end, $sid) . $part;
				($kind, $flags) = (9, $flags & 0x4) if $kind;
			}
			$length = length($payload);
		}
		$done .= pack('CnCCN', $length >> 16, $length & 0xffff, $kind, $flags, $sid) . $payload;
	}
	return $done . $rest;
}

no warnings 'redefine';

no warnings 'prototype';

my ($start, $end) = (\&Test::Nginx::http_start, \&Test::Nginx::http_end);
*Test::Nginx::http_start = sub ($;%) { $start->(head_of_request(shift), @_) };
*Test::Nginx::http_end = sub ($;%) { head_of_answer($end->(@_)) };

# The shim learns which port is asked in place of 8080.
my $run = \&Test::Nginx::run;
*Test::Nginx::run = sub ($;$) {
	my ($self, $conf) = @_;
	local $ENV{ASKED_PORT} = Test::Nginx::port(8080);
	return $run->($self, $conf);
};

if (eval { require Test::Nginx::HTTP2; }) {
	my $read = \&Test::Nginx::HTTP2::read;
	*Test::Nginx::HTTP2::read = sub {
		my ($self, %extra) = @_;
		$extra{wait} ||= 3;
		my $got = $read->($self, %extra);
		# The answer to the client's own SETTINGS would be taken for the end of a stream.
		if (@$got && ((caller(1))[3] || '') =~ /::new$/) {
			push @$got, @{$read->($self, wait => 1, all => [{ type => 'SETTINGS' }])}
				unless grep { $_->{type} eq 'SETTINGS' && $_->{flags} } @$got;
		}
		return $got;
	};
	my $huff = \&Test::Nginx::HTTP2::huff;
	*Test::Nginx::HTTP2::huff = sub {
		my ($text) = @_;
		my ($code, $bits) = (Test::Nginx::HTTP2::huff_code(), 0);
		$bits += length $code->{$_} for split //, $text;
		return substr $huff->($text), 0, int(($bits + 7) / 8);
	};
	my $write = \&Test::Nginx::HTTP2::raw_write;
	*Test::Nginx::HTTP2::raw_write = sub {
		my ($self, $message) = @_;
		$message .= "\0\0\0\4\0\0\0\0\0" if $message =~ /^(PRI.*)?SM\x0d\x0a\x0d\x0a$/s;
		$message = small_frames($message);
		return $write->($self, $message);
	};
}

1;
